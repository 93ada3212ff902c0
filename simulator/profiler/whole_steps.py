"""Whole steps of the real engine, its scheduler included, timed as a replay records them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from engine.api.llm_engine import LLMEngine
from engine.api.step_report import StepReport
from engine.core.sequence import Request
from engine.engine_config import EngineConfig
from engine.runner.executors.interface import Executor
from engine.runner.inputs.step_inputs import StepInputs
from engine.runner.step_tokens import StepTokens
from engine.sampling_params import SamplingParams
from simulator.profiler.samples import DISTURBED, Clock
from simulator.profiler.stopwatch import Undisturbed

_NUM_DECODE_PLANS = 8
MIDDLE_STEP = 5  # tokens by which contexts have grown at the middle one of the decode steps that are timed
_NUM_PROMPTS = 3
_LONG_VISIT_S = 0.3  # a visit that has lasted this long times no more prompts
_STRIDE = 7
_ROOM_TO_GROW = 64


def longest_context(max_model_len: int) -> int:
    """The longest context at which steps can be timed: sequences generate some tokens while they are timed."""
    return max(1, max_model_len - _ROOM_TO_GROW)


class SkippingExecutor:
    """Executes steps with `executor`, or pretends to execute them while `skip_prompts` is set.

    A skipped prompt leaves its KV as it was, and steps take as long with any KV.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.num_blocks = executor.num_blocks
        self.num_host_blocks = executor.num_host_blocks
        self.block_bytes = executor.block_bytes
        self.backend_name = executor.backend_name
        self.skip_prompts = False

    def execute(self, inputs: StepInputs) -> StepTokens:
        if not self.skip_prompts:
            return self._executor.execute(inputs)
        assert inputs.num_decodes == 0 and inputs.prefill is not None, "only steps of nothing but prompts are skipped"
        num_prompts = len(inputs.prefill.sampled_tokens)
        return StepTokens(np.zeros((inputs.num_steps, 0), np.int64), np.zeros(num_prompts, np.int64), 0, 0)

    def close(self) -> None:
        self._executor.close()


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
            prompts = [self._request(part) for part in self.split(length)]
            kept.begin()
            kept.add({str(length): run.step(*prompts)})
            for prompt in prompts:
                run.engine.abort(prompt.request_id)
            if batch:
                run.step()
        return kept.times

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

    def _request(self, num_tokens: int) -> Request:
        self._num_requests += 1
        tokens = self._rng.integers(0, self._vocab_size, num_tokens).tolist()
        return Request(self._num_requests, num_tokens, self._max_model_len - num_tokens, token_ids=tokens)

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
