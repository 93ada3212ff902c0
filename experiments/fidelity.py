"""How far off the simulator is: every table of docs/fidelity.md, against runs that were really measured.

    python experiments/fidelity.py vllm --data ../shared/ground_truth        vLLM 0.19 on RTX PRO 6000, two models
    python experiments/fidelity.py distserve --data ../shared/ground_truth   an early vLLM on A100, four rates
    python experiments/fidelity.py cpu --traces ../shared/traces [--turns 20]   our own engine on this machine

Constants are fitted where the table says so, by task=calibrate, and scored by task=validate; the cpu case profiles the
tiny model, measures workloads with the real engine and executes the steps of the first measurements again, all in
turns, so that a slow phase of a shared machine hits all alike and the fastest of each is from a quiet one. Tables go to
experiments/results/fidelity_<case>.json, fitted constants and figures to docs/fidelity/<case>/; the cpu case has the
processor in its name, takes two hours, and goes on with --resume.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from experiments.fidelity_lab import Lab, Scored, print_decisions, print_errors, print_noise, print_steps  # noqa: E402
from experiments.ground_truth import DISTSERVE_POOL, DISTSERVE_RATES, distserve_settings, vllm_folder, vllm_settings  # noqa: E402
from harness.results import RETIMED, SUMMARY, cpu_model, slug  # noqa: E402
from simulator.profile import META  # noqa: E402

CPU_CONTEXT = 8192  # tokens; longer requests of the Mooncake trace are refused, measured and simulated
RUN_EVERY = 5  # turns a workload is run anew, besides the steps of its first run being executed again
LONG = ("mooncake, 0.5/s",)  # executed, and run anew, in every second turn only
START_UP_S = 8.0  # of the profiler, about


def published_errors(path: Path) -> dict[str, float]:
    """The error table of another simulator: lines such as `TTFT Mean  7097.2  6815.7  -4.0%`."""
    names = {"TTFT": "ttft", "TPOT": "tpot", "Latency": "e2el"}
    rows = re.findall(r"^(\w+) (\w+)\s+[\d.]+\s+[\d.]+\s+([+-][\d.]+)%", path.read_text(), re.MULTILINE)
    return {f"{names[metric]} {statistic.lower()}": float(error) for metric, statistic, error in rows}


def vllm(lab: Lab, data: Path) -> None:
    """Llama-3.1-8B: constants fitted on it. Qwen3-32B on two GPUs: all-reduce times fitted on its first half."""
    settings = {case: vllm_settings(data, case) for case in ("llama", "qwen")}
    theirs = {
        case: published_errors(vllm_folder(data, case) / "llmservingsim_vs_vllm_summary.txt") for case in settings
    }
    all_reduce = "calibration.constants=[all_reduce_0mib_us,all_reduce_1mib_us,all_reduce_16mib_us]"

    def fit(suffix: str, *more: str) -> tuple[Path, Path]:
        llama = lab.calibrate(f"llama_constants{suffix}", *settings["llama"], *more)
        first = [f"cost.calibration={llama}", all_reduce, "calibration.part=first_half"]
        return llama, lab.calibrate(f"qwen_constants{suffix}", *settings["qwen"], *first)

    fitted, both = fit("")
    plain = lab.validate("llama_uncalibrated", *settings["llama"])
    llama = lab.validate("llama", *settings["llama"], f"cost.calibration={fitted}", figures=True)
    use_both = f"cost.calibration={both}"
    qwen = lab.validate("qwen", *settings["qwen"], use_both, figures=True)
    second = lab.validate("qwen_second_half", *settings["qwen"], use_both, "validation.score=second_half")
    queued = {
        case: lab.validate(
            f"{case}_queued", *settings[case], f"cost.calibration={file}", "validation.latency_from=queued"
        )
        for case, file in (("llama", fitted), ("qwen", both))
    }
    print_errors(
        "from the arrival", {"Llama, no constants": plain, "Llama": llama, "Qwen": qwen, "its 2nd half": second}
    )
    for width in (700, 2000):  # us, where 500 is what the cost model says
        wider_fitted, wider_both = fit(f"_{width}", f"calibration.widths={{step_overhead_us:{width}}}")
        wider = {
            "Llama": lab.validate(f"llama_{width}", *settings["llama"], f"cost.calibration={wider_fitted}"),
            "Qwen": lab.validate(f"qwen_{width}", *settings["qwen"], f"cost.calibration={wider_both}"),
        }
        print_errors(f"from the arrival, fitted with a width of {width} us for step_overhead_us", wider)
    for case, scored in queued.items():
        print_errors(f"{case}, from the queue", {"TwinServe": scored}, {"LLMServingSim": theirs[case]})
    lab.write(llmservingsim=theirs)


def distserve(lab: Lab, data: Path) -> None:
    """OPT-13B: constants fitted to the steps at 1 request/s, the other rates predicted; but how the server at 2
    requests/s pads is taken from its own run."""
    settings = {rate: distserve_settings(data, rate) for rate in DISTSERVE_RATES}
    steps = "calibration.objective=steps"
    fitted = lab.calibrate("constants", *settings["100-1"], steps)
    scored = {
        rate: lab.validate(
            rate, *settings[rate], f"cost.calibration={fitted}", "validation.recover_steps=true", figures=True
        )
        for rate in DISTSERVE_RATES
    }
    print_errors("requests and requests/s; constants fitted on the first", scored)
    own = {}
    for rate in DISTSERVE_RATES[1:]:  # what the form of the model can do at best: each run by constants of its own
        constants = lab.calibrate(f"own_{rate}", *settings[rate], steps)
        own[rate] = lab.validate(f"own_{rate}", *settings[rate], f"cost.calibration={constants}")
    print_errors("the same, constants fitted on each run itself", own)
    crowded = {"predicted": scored["300-3"]}
    changes = {"true_pool": (1.0, [f"num_blocks={DISTSERVE_POOL}"])}
    changes |= {f"{factor}_times_as_long": (factor, []) for factor in (0.99, 1.01, 1.02)}
    for name, (factor, more) in changes.items():
        constants = lab.scaled(fitted, factor)
        crowded[name] = lab.validate(f"300-3_{name}", *settings["300-3"], f"cost.calibration={constants}", *more)
    print_errors("3 requests/s, which queue for the KV pool: of its true size, and steps longer or shorter", crowded)
    lab.write()


def cpu(lab: Lab, args: argparse.Namespace) -> None:
    """Our own engine: profile the tiny model, measure the workloads and their steps in turns, then predict them."""
    chats = ["trace=sharegpt", f"trace.num_requests={args.requests}"]
    mooncake = ["trace=mooncake", f"trace.path={args.traces / 'mooncake' / 'conversation_trace.jsonl'}"]
    workloads = {  # none of them is used to profile
        "sharegpt, 2/s": [*chats, "arrival.rate=2"],
        "sharegpt, 6/s": [*chats, "arrival.rate=6"],
        "mooncake, 0.5/s": [*mooncake, f"trace.limit={args.requests}", "arrival.rate=0.5"],
        "KV-starved, 6/s": [*chats, "arrival.rate=6", "num_blocks=300"],
    }
    engine = [
        "engine=cpu", "model=tiny", f"model.max_position_embeddings={CPU_CONTEXT}",
        f"engine.num_threads={args.threads}", "max_num_seqs=64", "max_num_batched_tokens=1024",
    ]  # fmt: skip
    profile, runs, retimed = measure(lab, args, engine, workloads)
    of_runs: dict[str, Scored] = {}
    at: dict[str, dict[str, Scored]] = {"fastest": {}, "median": {}}
    for i, (name, folders) in enumerate(runs.items()):
        more, others = ",".join(map(str, retimed[name])), ",".join(f"run:{folder}" for folder in folders[1:])
        settings = ["engine=sim", "device=laptop-cpu", "cost=profiled", f"cost.profile={profile}"]
        settings += [f"validation.measured=run:{folders[0]}", f"validation.retimed=[{more}]"]
        of_runs[name] = lab.validate(f"workload{i}_runs", *settings, f"validation.repeats=[{others}]")
        at["fastest"][name] = lab.validate(f"workload{i}", *settings, "validation.step_times=fastest", figures=True)
        at["median"][name] = lab.validate(f"workload{i}_median", *settings, "validation.step_times=median")
    for statistic, scored in at.items():
        print_steps(f"step times, {statistic} of the executions of each", scored)
        print_errors(f"latencies, each step at the {statistic} of its executions", scored)
        print_noise("how far apart they are with half of the executions", scored)
    print_errors("latencies, median of the runs", of_runs)
    print_noise("largest difference of a run from the median of all", of_runs)
    print_decisions(of_runs)
    lab.write(engine=engine, workloads=workloads)


def measure(
    lab: Lab, args: argparse.Namespace, engine: list[str], workloads: dict[str, list[str]]
) -> tuple[Path, dict[str, list[Path]], dict[str, list[Path]]]:
    """Folders of the profile, and by workload of the runs and of more executions of the first run's steps: a slice of
    the profile before every second workload, and an execution of each, in turns. What is there already is kept."""
    profile = lab.scratch / "profile"
    profiling = [*engine, "num_blocks=32768", f"profile.time_budget_s={args.profiling}"]
    slice_s = START_UP_S + args.profiling / (args.turns * len(workloads) / 2)
    runs: dict[str, list[Path]] = {name: [] for name in workloads}
    retimed: dict[str, list[Path]] = {name: [] for name in workloads}
    for turn, (i, name) in product(range(args.turns), enumerate(workloads)):
        is_profiled = (profile / META).exists() or (lab.scratch / f"retimed{i + 1}_{turn}" / RETIMED).exists()
        if i % 2 == 0 and not is_profiled:
            lab.profile(profile, slice_s, *profiling)
        if name in LONG and turn % 2:
            continue
        if turn % RUN_EVERY == 0:
            folder = lab.scratch / f"run{i}_{turn}"
            if not (folder / SUMMARY).exists():
                lab.run(folder.name, *engine, "num_blocks=32768", *workloads[name], "plots=false")
            runs[name].append(folder)
        again = lab.scratch / f"retimed{i}_{turn}"
        if not (again / RETIMED).exists():
            lab.run(again.name, "task=retime", f"validation.measured=run:{runs[name][0]}", "retiming.repeats=1")
        retimed[name].append(again)
    if not (profile / META).exists():
        lab.profile(profile, None, *profiling)
    return profile, runs, retimed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=("vllm", "distserve", "cpu"))
    parser.add_argument("--data", type=Path, default=Path("../shared/ground_truth"))
    parser.add_argument("--traces", type=Path, default=Path("../shared/traces"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--requests", type=int, default=80)
    parser.add_argument("--profiling", type=float, default=1400, help="seconds, in all")
    parser.add_argument("--resume", action="store_true", help="cpu: go on where it was interrupted, or score again")
    args = parser.parse_args()
    os.chdir(ROOT)
    lab = Lab(f"cpu_{slug(cpu_model() or 'unknown')}" if args.case == "cpu" else args.case, keep=args.resume)
    if args.case == "vllm":
        vllm(lab, args.data)
    elif args.case == "distserve":
        distserve(lab, args.data)
    else:
        cpu(lab, args)


if __name__ == "__main__":
    main()
