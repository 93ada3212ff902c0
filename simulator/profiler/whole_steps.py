"""Whole steps of the real engine, its scheduler included, timed as a replay records them.

With `async_scheduling` a step is planned and launched while the one before it runs, and lasts from the tokens of that
one to its own. What the host does for a step with prompts may then delay the tokens of the step before it. So such a
step is priced at what it adds to a series of decode steps:

    recorded    | decode | decode | decode, whose tokens wait for a launch | prompts | decode |
    added                         | the last three, less two decode steps                     |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import numpy as np

from engine.api.llm_engine import LLMEngine
from engine.api.step_report import StepReport
from engine.core.sequence import Request
from engine.engine_config import EngineConfig
from engine.runner.executors.interface import Executor, LaunchingExecutor
from engine.runner.inputs.step_inputs import StepInputs
from engine.runner.step_tokens import StepTokens
from engine.sampling_params import SamplingParams
from simulator.profiler.samples import DISTURBED, Clock
from simulator.profiler.stopwatch import Undisturbed

_NUM_DECODE_PLANS = 8
MIDDLE_STEP = 5  # tokens by which contexts have grown at the middle one of the decode steps that are timed
_NUM_PROMPTS = 3
_NUM_ALONE = 3  # decode steps that tell what a step with prompts adds
_LONG_VISIT_S = 0.3  # a visit that has lasted this long times no more prompts
_STRIDE = 7
_ROOM_TO_GROW = 64


def longest_context(max_model_len: int) -> int:
    """The longest context at which steps can be timed: sequences generate some tokens while they are timed."""
    return max(1, max_model_len - _ROOM_TO_GROW)


class SkippingExecutor:
    """Executes steps with `executor`, but for steps of nothing but prompts while `skip_prompts` is set.

    A skipped prompt leaves its KV as it was, and steps take as long with any KV.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._launched: deque[StepTokens | None] = deque()  # those of skipped plans, None of others
        self.num_blocks = executor.num_blocks
        self.num_host_blocks = executor.num_host_blocks
        self.block_bytes = executor.block_bytes
        self.backend_name = executor.backend_name
        self.skip_prompts = False

    def execute(self, inputs: StepInputs) -> StepTokens:
        return self._skipped(inputs) or self._executor.execute(inputs)

    def launch(self, inputs: StepInputs) -> None:
        self._launched.append(skipped := self._skipped(inputs))
        if skipped is None:
            self._launcher.launch(inputs)

    def collect(self) -> StepTokens:
        return self._launched.popleft() or self._launcher.collect()

    def forget(self) -> None:
        self._launched.clear()
        self._launcher.forget()

    def close(self) -> None:
        self._executor.close()

    @property
    def _launcher(self) -> LaunchingExecutor:
        assert isinstance(self._executor, LaunchingExecutor)
        return self._executor

    def _skipped(self, inputs: StepInputs) -> StepTokens | None:
        """Made-up tokens of a plan to skip; None for others."""
        if not self.skip_prompts or inputs.num_decodes or inputs.prefill is None:
            return None
        num_prompts = len(inputs.prefill.sampled_tokens)
        return StepTokens(np.zeros((inputs.num_steps, 0), np.int64), np.zeros(num_prompts, np.int64), 0, 0)


class Steps:
    """Times steps on the real engine.

    Args:
        observe: what a replay does with each report; its time is part of the step after it.
        clock: times the steps.
    """

    def __init__(
        self,
        config: EngineConfig,
        executor: Executor,
        max_model_len: int,
        vocab_size: int,
        temperature: float,
        observe: Callable[[StepReport], None],
        clock: Clock,
    ) -> None:
        self._config = config
        self._executor = SkippingExecutor(executor)
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._temperature = temperature
        self._observe = observe
        self._clock = clock
        self._rng = np.random.default_rng(config.seed)
        self._num_requests = self._num_drawn = 0

    def decode(self, batch: int, context: int) -> dict[str, list[float]]:
        """Times in us of decode steps of `batch` sequences that are about `context` long.

        The key of the times is the batch as text; those during which another process ran are under `DISTURBED`.
        """
        run = self._begin(batch, context)
        run.step()  # the rows join
        kept = Undisturbed()
        for _ in range(_NUM_DECODE_PLANS):
            kept.begin()
            kept.add({str(batch): run.step()})
        return {**kept.times, DISTURBED: kept.disturbed(str(batch))}

    def with_prompts(self, batch: int, context: int, num_tokens: int) -> dict[str, list[float]]:
        """Times in us of steps of prompts of about `num_tokens` beside `batch` decodes of `context`, or alone.

        The keys of the times are the numbers of prompt tokens, which vary by up to an eighth: libraries prepare for
        every new number of tokens, and most prompts that are served have a new one.
        """
        run = self._begin(batch, context)
        if batch:
            run.step()
        kept, started = Undisturbed(), self._clock()
        for _ in range(_NUM_PROMPTS):
            if (self._clock() - started) * 1e-9 > _LONG_VISIT_S:
                break
            self._num_drawn += 1
            length = num_tokens - self._num_drawn * _STRIDE % max(1, num_tokens // 8)
            prompts = [self._request(part, 1) for part in self.split(length)]
            kept.begin()
            kept.add({str(length): self._with(run, prompts, is_alone=not batch)})
            if batch:
                run.step()
        return kept.times

    def _with(self, run: _Run, prompts: list[Request], *, is_alone: bool) -> float:
        """What a step of prompts takes, us."""
        if is_alone or not self._config.async_scheduling:
            return run.step(*prompts)
        alone = [run.step() for _ in range(_NUM_ALONE)]
        return run.step(*prompts) + run.step() + run.step() - 2 * median(alone)

    def split(self, num_tokens: int) -> list[int]:
        """The lengths of the fewest prompts that hold `num_tokens` tokens."""
        longest = longest_context(self._max_model_len)
        count = -(-num_tokens // longest)
        return [num_tokens // count + (i < num_tokens % count) for i in range(count)]

    def _begin(self, batch: int, context: int) -> _Run:
        """An engine in which `batch` sequences are about to decode their first token."""
        limit = max(self._config.max_num_batched_tokens, batch * context)
        engine = LLMEngine(
            replace(self._config, max_num_batched_tokens=limit), self._executor, max_model_len=self._max_model_len
        )
        run = _Run(engine, self._params, self._observe, self._clock)
        if batch:
            self._executor.skip_prompts = True
            run.step(*(self._request(context) for _ in range(batch)))
            self._executor.skip_prompts = False
        return run

    def _request(self, num_tokens: int, num_output: int | None = None) -> Request:
        """A prompt; it generates as much as it can unless `num_output` says how much."""
        self._num_requests += 1
        tokens = self._rng.integers(0, self._vocab_size, num_tokens).tolist()
        most = self._max_model_len - num_tokens
        return Request(self._num_requests, num_tokens, num_output or most, token_ids=tokens)

    @property
    def _params(self) -> SamplingParams:
        return SamplingParams(max_tokens=self._max_model_len, temperature=self._temperature, ignore_eos=True)


class _Run:
    """The loop of a replay: a step lasts from the commit of the one before it to its own."""

    def __init__(
        self, engine: LLMEngine, params: SamplingParams, observe: Callable[[StepReport], None], clock: Clock
    ) -> None:
        self.engine = engine
        self._params = params
        self._observe = observe
        self._clock = clock
        self._now = clock()

    def step(self, *arrivals: Request) -> float:
        """Run one plan after adding `arrivals`; returns the mean time of its steps in us."""
        started = self._now
        for request in arrivals:
            self.engine.add(request, self._params)
        executed = self.engine.execute(started)
        assert executed is not None
        now = self._clock()
        report = self.engine.commit(executed, now)
        self._now = now
        self._observe(report)
        return (now - started) * 1e-3 / report.plan.num_steps
