"""How far off is the simulation of our own engine, with a profile of this machine, for workloads not profiled on?"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

from experiments.fidelity.lab import Lab, Scored, print_decisions, print_errors, print_noise, print_steps
from harness.results.stored.files import SUMMARY
from simulator.profile.profile import META

CPU_CONTEXT = 8192  # tokens; longer requests of the Mooncake trace are refused, measured and simulated
MOONCAKE, STARVED, STARVED_LONGER = "mooncake, 0.5/s", "KV-starved, 6/s", "KV-starved, 3 times as long"
LONG = (MOONCAKE,)  # takes part in every second turn only
TIMES_LONGER = 3
START_UP_S = 8.0  # start-up time of the profiler, roughly

GPU_RATES = {"qwen3-0.6b": (30,), "qwen3-8b": (10, 20)}  # requests/s
QUICK_RATES = {"tiny": (20,)}
QUICK_REQUESTS = 10
QUICK = ["engine.num_threads=1", "max_model_len=1024", "max_num_batched_tokens=512", "max_num_seqs=32"]
GPU = ["engine.max_lookahead_steps=1", "max_model_len=8192", "max_num_batched_tokens=8192", "max_num_seqs=256"]
SERVED_S = 12  # seconds of requests at each rate
LEAST_REQUESTS = 60


def cpu(lab: Lab, args: argparse.Namespace) -> None:
    """The tiny model: profile it and measure the workloads in turns, then predict them."""
    chats = ["trace=sharegpt", f"trace.num_requests={args.requests}"]
    more_chats = ["trace=sharegpt", f"trace.num_requests={TIMES_LONGER * args.requests}"]
    mooncake = ["trace=mooncake", f"trace.path={args.traces / 'mooncake' / 'conversation_trace.jsonl'}"]
    workloads = {  # none of them is used to profile
        "sharegpt, 2/s": [*chats, "arrival.rate=2"],
        "sharegpt, 6/s": [*chats, "arrival.rate=6"],
        MOONCAKE: [*mooncake, f"trace.limit={args.requests}", "arrival.rate=0.5"],
        STARVED: [*chats, "arrival.rate=6", "num_blocks=300"],
        STARVED_LONGER: [*more_chats, "arrival.rate=6", "num_blocks=300"],
    }
    engine = [
        "engine=cpu", "model=tiny", f"model.max_position_embeddings={CPU_CONTEXT}",
        f"engine.num_threads={args.threads}", "max_num_seqs=64", "max_num_batched_tokens=1024",
    ]  # fmt: skip
    profile, runs = measure(lab, args, engine, workloads)
    scored = {
        name: lab.validate(f"workload{i}", *_predicted("laptop-cpu", profile, folders), figures=True)
        for i, (name, folders) in enumerate(runs.items())
    }
    _print(scored)
    lab.publish(profile)
    lab.write(engine=engine, workloads=workloads)


def measure(
    lab: Lab, args: argparse.Namespace, engine: list[str], workloads: dict[str, list[str]]
) -> tuple[Path, dict[str, list[Path]]]:
    """Profile and run, in turns; finished jobs of an earlier call are kept.

    Each turn continues the profile before every other workload.

    Returns: folders of the profile and, by workload, of its runs.
    """
    profile = lab.scratch / "profile"
    profiling = [*engine, "num_blocks=32768", f"profile.time_budget_s={args.profiling}"]
    slice_s = START_UP_S + args.profiling / (args.turns * (len(workloads) // 2))
    runs: dict[str, list[Path]] = {name: [] for name in workloads}
    for turn, (i, name) in product(range(args.turns), enumerate(workloads)):
        is_profiled = (profile / META).exists() or (lab.scratch / f"run{i + 1}_{turn}" / SUMMARY).exists()
        if i % 2 == 0 and i + 1 < len(workloads) and not is_profiled:
            lab.profile(profile, slice_s, *profiling)
        if name in LONG and turn % 2:
            continue
        settings = [*engine, "num_blocks=32768", *workloads[name], "plots=false"]
        runs[name].append(lab.run_once(f"run{i}_{turn}", SUMMARY, *settings))
    if not (profile / META).exists():
        lab.profile(profile, None, *profiling)
    return profile, runs


def gpu(lab: Lab, args: argparse.Namespace) -> None:
    """Qwen3 on this machine's GPU: profile each model, serve ShareGPT's lengths at its rates, then predict the runs,
    which needs no GPU."""
    kind, models = (
        ("cpu", QUICK_RATES) if args.quick else ("gpu", {name: args.rates or GPU_RATES[name] for name in args.models})
    )
    measured: dict[str, dict[int, list[Path]]] = {}
    for model, rates in models.items():
        engine = [f"engine={kind}", f"model={model}", "scheduler=vllm", *(QUICK if args.quick else GPU)]
        if not (_profile_of(lab, model) / META).exists():
            lab.profile(_profile_of(lab, model), None, *engine, f"profile.time_budget_s={args.profiling}")
        measured[model] = {rate: _served(lab, args, engine, f"{model}_{rate}", rate) for rate in rates}
    for model, by_rate in measured.items():
        scored = {}
        for rate, runs in by_rate.items():
            predicted = _predicted(args.device, _profile_of(lab, model), runs)
            scored[f"{rate}/s"] = lab.validate(f"{model}_{rate}", *predicted, figures=True)
        _print(scored)
        if not args.quick:
            lab.publish(_profile_of(lab, model))
    lab.write(rates=models)


def _profile_of(lab: Lab, model: str) -> Path:
    return lab.scratch / f"profile_{model}"


def _served(lab: Lab, args: argparse.Namespace, engine: list[str], name: str, rate: int) -> list[Path]:
    """Folders of runs at a rate."""
    count = QUICK_REQUESTS if args.quick else max(LEAST_REQUESTS, SERVED_S * rate)
    settings = [*engine, "trace=sharegpt", f"trace.num_requests={count}", f"arrival.rate={rate}", "plots=false"]
    return [lab.run_once(f"{name}_run{i}", SUMMARY, *settings) for i in range(args.runs)]


def _predicted(device: str, profile: Path, runs: list[Path]) -> list[str]:
    """Settings that predict the first of `runs` with a profile, and compare with the median of all."""
    repeats = ",".join(f"run:{folder}" for folder in runs[1:])
    return [
        "engine=sim", f"device={device}", "cost=profiled", f"cost.profile={profile}",
        f"validation.measured=run:{runs[0]}", f"validation.repeats=[{repeats}]",
    ]  # fmt: skip


def _print(scored: dict[str, Scored]) -> None:
    print_steps("step times", scored)
    print_errors("latencies, median of the runs", scored)
    print_noise("largest difference of a run from the median of all", scored)
    print_decisions(scored)
