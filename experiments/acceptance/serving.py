"""How fast is the engine beside others, and what does its host code cost? Each engine has the device for itself."""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from experiments.acceptance.context import Context, SkippedError
from experiments.acceptance.engines import NanoVllm, Ours, Runner, TransformersContinuous, Vllm, save_model, workload

OVERHEAD_GOAL = 0.05
MEMORY_GOAL = 1.01  # of the allowed memory: kernels that are loaded later take a little more
ROUNDS = 3
_WARM_UP = 8  # requests of the first, uncounted round


def engine(context: Context) -> None:
    """This engine: output tokens/s, host time of decode steps, memory."""
    own = Ours(context)
    own(workload(context.rehearse)[:_WARM_UP])
    own.steps.clear()
    _measure(context, "this engine", own)
    _overhead(context, own)
    if context.is_cuda:
        _memory(context, own)
    own.close()


def transformers(context: Context) -> None:
    """transformers' continuous batching."""
    _other(context, "transformers continuous batching", TransformersContinuous)


def nano_vllm(context: Context) -> None:
    _other(context, "nano-vllm", NanoVllm)


def vllm(context: Context) -> None:
    _other(context, "vLLM", Vllm)


def _other(context: Context, name: str, load: Callable[[Context, Path], Runner]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        save_model(context, Path(folder))
        gc.collect()
        if context.is_cuda:
            torch.cuda.empty_cache()
        try:
            runner = load(context, Path(folder))
        except ImportError as error:
            raise SkippedError(f"not installed: {error}") from error
        runner(workload(context.rehearse)[:_WARM_UP])
        _measure(context, name, runner)


def _measure(context: Context, name: str, runner: Runner) -> None:
    """Serve the workload a few times; records output tokens/s."""
    requests = workload(context.rehearse)
    num_tokens = sum(n for _, n in requests)
    speeds: list[float] = []
    context.record["output_tokens_per_s"] = speeds
    for number in range(1 if context.rehearse else ROUNDS):
        started = time.perf_counter()
        runner(requests)
        context.synchronize()
        speeds.append(num_tokens / (time.perf_counter() - started))
        context.add(f"{name}, run {number + 1}", f"{speeds[-1]:,.0f} output tokens/s")
    context.add(f"{name}, median", f"{statistics.median(speeds):,.0f} output tokens/s")


def _overhead(context: Context, own: Ours) -> None:
    """The share of planning, building inputs and accounting in the time of plans that only decode."""
    decoding = [(report, wall) for report, wall in own.steps if not report.plan.prefills]
    walls = sum(wall for _, wall in decoding)
    device = sum(report.times.execute_ns + report.times.sample_ns for report, _ in decoding)
    num_steps = sum(report.plan.num_steps for report, _ in decoding)
    share = (walls - device) / walls
    context.record["decode"] = {"host_share": share, "step_ns": walls / num_steps}
    context.add(
        "host time of a decode step", f"{share:.1%} of {walls / num_steps / 1e3:,.0f} us", f"< {OVERHEAD_GOAL:.0%}",
        context.judged(share < OVERHEAD_GOAL),
    )  # fmt: skip


def _memory(context: Context, own: Ours) -> None:
    reserved = torch.cuda.max_memory_reserved(context.device)
    free, total = torch.cuda.mem_get_info(context.device)
    allowed = int(total * own.llm.engine.config.gpu_memory_utilization)
    context.record["memory_bytes"] = {"peak_reserved": reserved, "in_use": total - free, "allowed": allowed}
    context.add(
        "peak memory of this engine", f"{reserved / 2**30:.1f} GiB, {(total - free) / 2**30:.1f} GiB in use",
        f"<= {allowed / 2**30:.1f} GiB", total - free <= MEMORY_GOAL * allowed,
    )  # fmt: skip
