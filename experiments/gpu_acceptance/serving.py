"""How fast is the engine beside others, what does its host code cost, and do CUDA graphs change its tokens?"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
import traceback
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from engine.llm import LLM
from engine.models.model_config import ModelConfig
from engine.sampling_params import SamplingParams
from engine.step_report import StepReport
from experiments.gpu_acceptance.common import Check, Context, Outcome
from experiments.gpu_acceptance.engines import (
    FACTORIES,
    Ours,
    Requests,
    Runner,
    TransformersContinuous,
    UnfinishedError,
    model_shape,
    save_model,
    workload,
)

TEMPERATURE_OF_CASES = 0.8
OVERHEAD_GOAL = 0.05
NANO_GOAL = 1.5
MEMORY_GOAL = 1.01  # of the allowed memory: kernels that are loaded later take a little more
EQUAL_GOAL = 0.9  # padding changes the order of sums, which can decide a near tie of two tokens differently
MAX_ROUNDS = 3
_WARM_UP = 8  # requests of the first, uncounted round


def engines(context: Context) -> Outcome:
    """The workload through every installed engine, in turns; host overhead and memory of this engine."""
    requests = workload(context.quick)
    outcome = Outcome(record={"prompt_tokens": sum(len(p) for p, _ in requests), "errors": {}})
    outcome.record["output_tokens"] = sum(n for _, n in requests)
    with tempfile.TemporaryDirectory() as folder:
        save_model(context, Path(folder))
        _free(context)
        if context.is_cuda:
            torch.cuda.reset_peak_memory_stats(context.device)
        runners: dict[str, Runner] = {}
        try:
            _load(context, Path(folder), runners, outcome, "this engine")
            own = runners["this engine"]
            assert isinstance(own, Ours)
            own(requests[:_WARM_UP])
            _overhead(context, own.serve(requests), outcome)
            _memory(context, own, outcome)
            for name in FACTORIES:
                if name not in runners:
                    _load(context, Path(folder), runners, outcome, name)
            _compare(context, runners, requests, outcome)
        finally:
            for runner in runners.values():
                if isinstance(runner, Ours | TransformersContinuous):
                    runner.close()
            runners.clear()
            _free(context)
    return outcome


def _load(context: Context, folder: Path, runners: dict[str, Runner], outcome: Outcome, name: str) -> None:
    """Load an engine. Failures are recorded; only a failure of this engine fails the section."""
    started = time.monotonic()
    try:
        runners[name] = FACTORIES[name](context, folder)
    except ImportError as error:
        outcome.record["errors"][name] = f"not installed: {error}"
    except Exception:
        if name == "this engine":
            raise
        outcome.record["errors"][name] = traceback.format_exc()
    outcome.record.setdefault("load_s", {})[name] = time.monotonic() - started


def _compare(context: Context, runners: dict[str, Runner], requests: Requests, outcome: Outcome) -> None:
    """Let every engine serve the workload in turn, in several rounds; records output tokens/s of each."""
    num_tokens = outcome.record["output_tokens"]
    speeds: dict[str, list[float]] = {name: [] for name in runners}
    unmeasured: set[str] = set()
    for round_ in range(1 + (1 if context.quick else MAX_ROUNDS)):
        for name in [name for name in runners if name not in unmeasured]:
            if context.seconds_left() < (num_tokens / min(speeds[name]) if speeds[name] else 0):
                continue
            try:
                started = time.perf_counter()
                runners[name](requests[:_WARM_UP] if round_ == 0 else requests)
                context.synchronize()
                seconds = time.perf_counter() - started
            except Exception as error:
                expected = isinstance(error, UnfinishedError)
                outcome.record["errors"][name] = str(error) if expected else traceback.format_exc()
                unmeasured.add(name)
                failed = runners[name]
                if isinstance(failed, TransformersContinuous):  # else it would generate while others are measured
                    failed.close()
                    del runners[name]
                continue
            if round_:
                speeds[name].append(num_tokens / seconds)
    outcome.record["output_tokens_per_s"] = speeds
    medians = {name: statistics.median(each) for name, each in speeds.items() if each}
    for name, speed in medians.items():
        ratio = medians.get("this engine", 0.0) / speed
        goal, passed = ("", None) if name != "nano-vllm" else (f"> {NANO_GOAL}x", context.judged(ratio > NANO_GOAL))
        note = "" if name == "this engine" else f"; this engine {ratio:.2f}x"
        outcome.checks.append(Check(name, f"{speed:,.0f} tok/s in {len(speeds[name])} runs{note}", goal, passed))
    for name, text in outcome.record["errors"].items():
        last = text.strip().splitlines()[-1]
        outcome.checks.append(Check(name, f"not measured: {last[:100]}"))


def _overhead(context: Context, steps: list[tuple[StepReport, int]], outcome: Outcome) -> None:
    """The share of planning, building inputs and accounting in the time of plans that only decode."""
    decoding = [(report, wall) for report, wall in steps if not report.plan.prefills]
    if not decoding:
        return
    walls = sum(wall for _, wall in decoding)
    device = sum(report.times.execute_ns + report.times.sample_ns for report, _ in decoding)
    num_steps = sum(report.plan.num_steps for report, _ in decoding)
    parts = {
        name: sum(getattr(report.times, f"{name}_ns") for report, _ in decoding) / num_steps
        for name in ("schedule", "prepare", "execute", "sample")
    }
    share = (walls - device) / walls
    outcome.record["decode"] = {
        "host_share": share, "step_ns": walls / num_steps, "steps_per_plan": num_steps / len(decoding), **parts,
    }  # fmt: skip
    outcome.checks.append(
        Check("host time of a decode step", f"{share:.1%} of {walls / num_steps / 1e3:,.0f} us",
              f"< {OVERHEAD_GOAL:.0%}", context.judged(share < OVERHEAD_GOAL))
    )  # fmt: skip


def _memory(context: Context, own: Ours, outcome: Outcome) -> None:
    if not context.is_cuda:
        return
    peak, reserved = torch.cuda.max_memory_allocated(context.device), torch.cuda.max_memory_reserved(context.device)
    free, total = torch.cuda.mem_get_info(context.device)
    outcome.record["memory_bytes"] = {
        "peak_allocated": peak, "peak_reserved": reserved, "in_use": total - free, "total": total,
        "allowed": int(total * own.llm.engine.config.gpu_memory_utilization),
    }  # fmt: skip
    allowed = outcome.record["memory_bytes"]["allowed"]
    outcome.checks.append(
        Check("peak memory of this engine", f"{reserved / 2**30:.1f} GiB, {(total - free) / 2**30:.1f} GiB in use",
              f"<= {allowed / 2**30:.1f} GiB", total - free <= MEMORY_GOAL * allowed)
    )  # fmt: skip


def _free(context: Context) -> None:
    gc.collect()
    if context.is_cuda:
        torch.cuda.empty_cache()


def graphs(context: Context) -> Outcome:
    """Tokens with CUDA graphs and without, in float32, where rounding hardly ever changes a token."""
    outcome = Outcome()
    shape = {**model_shape(context.quick), "num_layers": 2, "dtype": "float32", "tie_word_embeddings": False}
    # With larger weights than usual the text varies, so that equal tokens prove something.
    model = replace(ModelConfig.from_shape(shape), initializer_range=0.1)
    prompts = [[(7 * i + 3 * j) % 997 + 1 for j in range(1 + 37 * i % 90)] for i in range(4 if context.quick else 27)]
    length = 6 if context.quick else 120
    cases = {
        "greedy": SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True),
        "sampled": SamplingParams(max_tokens=length, temperature=TEMPERATURE_OF_CASES, ignore_eos=True, seed=1),
        "top-k and top-p": SamplingParams(
            max_tokens=length, temperature=TEMPERATURE_OF_CASES, top_k=40, top_p=0.9, seed=1
        ),
    }
    variants: dict[str, dict[str, Any]] = {
        "graphs": {"cuda_graphs": True},
        "graphs, tight pool": {"cuda_graphs": True, "num_blocks": 160},
    }
    expected = _generate(context, model, prompts, cases, cuda_graphs=False, max_lookahead_steps=1)
    for variant, settings in variants.items():
        found = _generate(context, model, prompts, cases, **settings)
        for case in cases:
            equal = sum(a == b for a, b in zip(expected[case], found[case], strict=True))
            outcome.record[f"{variant}/{case}"] = {"equal": equal, "of": len(prompts)}
            name = f"{case}: requests of {variant} with the eager path's tokens"
            passed = equal >= EQUAL_GOAL * len(prompts)
            outcome.checks.append(Check(name, f"{equal} of {len(prompts)}", f">= {EQUAL_GOAL:.0%}", passed))
    if context.is_cuda:
        outcome.checks.append(_implicit_waits(context, model, prompts, cases))
    return outcome


def _implicit_waits(
    context: Context, model: ModelConfig, prompts: list[list[int]], cases: dict[str, SamplingParams]
) -> Check:
    """How often a warm engine waits for the device, besides the wait for tokens, which torch does not count."""
    llm = _make(context, model, cuda_graphs=True)
    try:
        for params in cases.values():
            llm.generate(prompts, params)
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for params in cases.values():
                llm.generate(prompts, params)
        waits = [str(each.message) for each in caught if "synchroniz" in str(each.message)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
        llm.close()
    return Check("waits for the device beside that for tokens", str(len(waits)), "0", not waits)


def _generate(
    context: Context, model: ModelConfig, prompts: list[list[int]], cases: dict[str, SamplingParams], **settings: Any
) -> dict[str, list[list[int]]]:
    llm = _make(context, model, **settings)
    try:
        return {
            case: [output["token_ids"] for output in llm.generate(prompts, params)] for case, params in cases.items()
        }
    finally:
        llm.close()


def _make(context: Context, model: ModelConfig, **settings: Any) -> LLM:
    defaults: dict[str, Any] = {"max_num_seqs": 20, "num_blocks": 2000, "max_model_len": 512, "dtype": "float32"}
    device = "cuda" if context.is_cuda else "cpu"
    return LLM(model, **{**defaults, "device": device, "max_num_batched_tokens": 256, **settings})
