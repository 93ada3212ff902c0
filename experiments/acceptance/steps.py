"""What do a mixed step and a decode step consist of: device time by kernel, and wall time beside it?"""

from __future__ import annotations

import time

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from engine.api.step_report import StepReport
from engine.core.sequence import Request
from engine.sampling_params import SamplingParams
from experiments.acceptance.context import Context
from experiments.acceptance.engines import Ours

DECODES, CONTEXT, CHUNK = 128, 1024, 64
MIXED_STEPS, DECODE_PLANS = 24, 6
_SHOWN = 12  # kernels in the terminal


class Feed:
    """Keeps an engine busy with long answers, and adds prompts one at a time."""

    def __init__(self, context: Context, own: Ours) -> None:
        self._engine = own.llm.engine
        self._num_requests = 0
        decodes, length, self._chunk = (4, 40, 8) if context.rehearse else (DECODES, CONTEXT, CHUNK)
        for _ in range(decodes):
            self._add(length)
        while self.step().plan.prefills:
            pass
        self.mixed_step()
        self.step()  # now everything is compiled

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


def steps(context: Context) -> None:
    """Mixed steps of one prompt chunk and many decodes, then decode steps."""
    own = Ours(context, **({} if context.rehearse else {"max_num_seqs": DECODES + MIXED_STEPS + 8}))
    feed = Feed(context, own)
    activity, kind = (
        (ProfilerActivity.CUDA, DeviceType.CUDA) if context.is_cuda else (ProfilerActivity.CPU, DeviceType.CPU)
    )
    for what, step, count in (
        ("mixed step", feed.mixed_step, 2 if context.rehearse else MIXED_STEPS),
        ("decode step", feed.step, DECODE_PLANS),
    ):
        context.synchronize()
        with profile(activities=[activity]) as profiler:
            started = time.perf_counter()
            num_steps = sum(step().plan.num_steps for _ in range(count))
            context.synchronize()
            wall_us = (time.perf_counter() - started) * 1e6 / num_steps
        kernels = {
            event.key: (event.self_device_time_total if context.is_cuda else event.self_cpu_time_total) / num_steps
            for event in profiler.key_averages()
            if event.device_type == kind
        }
        kernels = dict(sorted(kernels.items(), key=lambda item: -item[1]))
        busy_us = sum(kernels.values())
        context.record[what] = {"steps": num_steps, "wall_us": wall_us, "busy_us": busy_us, "kernels_us": kernels}
        context.add(f"{what}: kernels of the wall time", f"{busy_us:,.0f} of {wall_us:,.0f} us")
        for name, each_us in list(kernels.items())[:_SHOWN]:
            context.add(f"{what}: {name[:60]}", f"{each_us:,.1f} us, {each_us / busy_us:.0%}")
    own.close()
