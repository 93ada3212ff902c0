"""What do a mixed step and a decode step consist of: host time of launching them, and device time by kernel?"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from engine.api.llm_engine import LLMEngine
from engine.api.step_report import StepReport
from engine.core.sequence import Request
from engine.runner.model_runner import ModelRunner
from engine.sampling_params import SamplingParams
from experiments.acceptance.common import Context
from experiments.acceptance.engines import Ours, ours

DECODES, CONTEXT, CHUNK = 128, 1024, 64
MIXED_STEPS, DECODE_PLANS = 24, 6
HOST_GOAL_MS = 2.0
_SHOWN = 12  # kernels in the terminal


class LaunchTimes:
    """Notes the processor time of each launch of a plan, until it is closed. No launch waits for the device."""

    def __init__(self) -> None:
        self.milliseconds: list[float] = []
        self._original = ModelRunner.launch

        def timed(runner: ModelRunner, inputs: Any) -> Callable[[], Any]:
            started = time.thread_time()
            finish = self._original(runner, inputs)
            self.milliseconds.append((time.thread_time() - started) * 1e3)
            return finish

        ModelRunner.launch = timed  # type: ignore[method-assign]

    def close(self) -> None:
        ModelRunner.launch = self._original  # type: ignore[method-assign]


def steps(context: Context) -> None:
    """Mixed steps of one prompt chunk and many decodes, then decode steps: host time first, then kernels."""
    own = ours(context, **({} if context.rehearse else {"max_num_seqs": DECODES + 2 * MIXED_STEPS + 8}))
    feed = Feed(context, own)
    feed.fill()
    times = LaunchTimes()
    try:
        mixed = [feed.mixed_step() for _ in range(feed.mixed_steps)]
        by_mixed = list(times.milliseconds)
        times.milliseconds.clear()
        decodes = [feed.step() for _ in range(DECODE_PLANS)]
    finally:
        times.close()
    _report_host(context, "mixed", by_mixed, sum(bool(report.plan.prefills) for report in mixed))
    _report_host(context, "decode", times.milliseconds, sum(not report.plan.prefills for report in decodes))
    _profiled(context, "mixed step", lambda: [feed.mixed_step() for _ in range(feed.mixed_steps)])
    _profiled(context, "decode step", lambda: [feed.step() for _ in range(DECODE_PLANS)])
    own.close()


class Feed:
    """Keeps an engine busy with long answers, and adds prompts one at a time."""

    def __init__(self, context: Context, own: Ours) -> None:
        self._engine: LLMEngine = own.llm.engine
        self._num_requests = 0
        self._decodes, self._context = (4, 40) if context.rehearse else (DECODES, CONTEXT)
        self._chunk = 8 if context.rehearse else CHUNK
        self.mixed_steps = 2 if context.rehearse else MIXED_STEPS

    def fill(self) -> None:
        """Add the long prompts and run until all of them decode, with a few more steps to compile everything."""
        for _ in range(self._decodes):
            self._add(self._context)
        while self.step().plan.prefills:
            pass
        self.mixed_step()
        self.step()

    def mixed_step(self) -> StepReport:
        """A step with the chunk of a new prompt beside the decodes."""
        self._add(self._chunk, 1)
        return self.step()

    def step(self) -> StepReport:
        report = self._engine.step(time.perf_counter_ns())
        assert report is not None
        return report

    def _add(self, num_prompt: int, num_output: int = 512) -> None:
        i, self._num_requests = self._num_requests, self._num_requests + 1
        prompt = [(31 * i + 7 * j) % 997 + 1 for j in range(num_prompt)]
        params = SamplingParams(max_tokens=num_output, temperature=0.6, ignore_eos=True)
        self._engine.add(Request(i, num_prompt, num_output, token_ids=prompt), params)


def _report_host(context: Context, kind: str, milliseconds: list[float], num_of_kind: int) -> None:
    context.record[f"host_ms/{kind}"] = {"launches": milliseconds, "of_kind": num_of_kind}
    if milliseconds:
        value = statistics.median(milliseconds)
        has_goal = kind == "mixed"
        context.add(
            f"host time of launching a {kind} plan, median of {len(milliseconds)}", f"{value:.2f} ms",
            f"< {HOST_GOAL_MS} ms" if has_goal else "", context.judged(value < HOST_GOAL_MS) if has_goal else None,
        )  # fmt: skip


def _profiled(context: Context, what: str, run: Callable[[], list[StepReport]]) -> None:
    """Device time per step by kernel, and the wall time per step beside it."""
    activity = ProfilerActivity.CUDA if context.is_cuda else ProfilerActivity.CPU
    context.synchronize()
    with profile(activities=[activity]) as profiler:
        started = time.perf_counter()
        reports = run()
        context.synchronize()
        wall_us = (time.perf_counter() - started) * 1e6
    num_steps = sum(report.plan.num_steps for report in reports)
    kernels: dict[str, dict[str, float]] = {}
    for event in profiler.key_averages():
        is_kernel = event.device_type == (DeviceType.CUDA if context.is_cuda else DeviceType.CPU)
        total_us = event.self_device_time_total if context.is_cuda else event.self_cpu_time_total
        if is_kernel and total_us:
            kernels[event.key] = {"us_per_step": total_us / num_steps, "per_step": event.count / num_steps}
    kernels = dict(sorted(kernels.items(), key=lambda item: -item[1]["us_per_step"]))
    busy_us = sum(each["us_per_step"] for each in kernels.values())
    context.record[what] = {"steps": num_steps, "wall_us": wall_us / num_steps, "busy_us": busy_us, "kernels": kernels}
    context.add(f"{what}: kernels of the wall time", f"{busy_us:,.0f} of {wall_us / num_steps:,.0f} us")
    for name, each in list(kernels.items())[:_SHOWN]:
        value = f"{each['us_per_step']:,.1f} us in {each['per_step']:.1f}, {each['us_per_step'] / busy_us:.0%}"
        context.add(f"{what}: {name[:60]}", value)
