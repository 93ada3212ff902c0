"""The real engine set up for measuring, and how the points of every family are measured on it."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import NormalDist

import numpy as np
import torch
from numpy.typing import NDArray

from engine.api.step_report import StepReport
from engine.engine_config import EngineConfig
from engine.models.layers.parallel import TensorParallel
from engine.models.model_config import ModelConfig
from engine.runner.executors.executor import Rank, longest_sequence
from engine.runner.executors.interface import Executor
from engine.runner.executors.tensor_parallel import TensorParallelExecutor
from engine.runner.graphs.cuda_graphs import bucket_for, buckets
from engine.runner.inputs.step_inputs import StepInputs
from engine.runner.model_runner import ModelRunner
from engine.runner.step_tokens import StepTokens
from simulator.profiler.collectives import Collectives
from simulator.profiler.operators import LoneRank, Operators
from simulator.profiler.samples import ADDED_BY_ATTENTION, ALL_OPERATORS, ATTENTION, Clock, Point, Times
from simulator.profiler.stopwatch import MakeCalls, make_stopwatch
from simulator.profiler.whole_steps import MIDDLE_STEP, Steps

_VISIT_S = 0.004  # a visit repeats its operators for this long, and runs them once at least
_LONE_SHARE = 3  # with several ranks, the KV pool to measure on is this fraction of what fits
_LARGEST_SIGMA, _SIGMA_OF_MOST, _LONG_ONE_IN, _CLOSE = 8.0, 0.7, 8, 0.04


@dataclass(frozen=True)
class Limits:
    """The largest sizes to measure, as the engine can have them."""

    num_tokens: int
    num_seqs: int
    context: int
    max_model_len: int
    num_blocks: int
    block_size: int
    token_buckets: tuple[int, ...]
    prompt_buckets: tuple[int, ...]
    tensor_parallel_size: int
    all_reduce_bytes: int
    """Of one token."""
    on_cpu: bool = True
    """Its caches hold much of what a step reads, so the time of an operator depends on what runs between its calls."""

    def holds(self, batch: int, context: int) -> bool:
        """Whether the KV pool holds `batch` sequences of this context, with room for some to grow."""
        return batch * (-(-context // self.block_size) + 1) <= 0.95 * self.num_blocks


class _RunnerExecutor:
    """Executes steps on a runner of this process."""

    def __init__(self, runner: ModelRunner, rank: Rank, num_blocks: int) -> None:
        self._runner = runner
        self.num_blocks = num_blocks
        self.num_host_blocks = rank.num_host_blocks
        self.block_bytes = rank.block_bytes
        self.backend_name = rank.backend_name
        self._launched: deque[Callable[[], StepTokens]] = deque()

    def execute(self, inputs: StepInputs) -> StepTokens:
        return self._runner.execute(inputs)

    def launch(self, inputs: StepInputs) -> None:
        self._launched.append(self._runner.launch(inputs))

    def collect(self) -> StepTokens:
        return self._launched.popleft()()

    def forget(self) -> None:
        self._launched.clear()

    def close(self) -> None:
        """The runner belongs to the bench: there is nothing to close."""


class Bench:
    """A model loaded on this machine; `measure` times one point.

    Args:
        folder: the folder of the weights, None for random weights.
        temperature: that requests sample with.
        max_context: longest context to measure; None for what the engine allows.
        observe: what a replay does with each step's report.
        clock: times what runs on a CPU, and whole steps.

    Raises:
        ModelError, OutOfMemoryError, BackendUnavailableError, WorkerError: as the engine itself.
    """

    def __init__(
        self,
        config: EngineConfig,
        model_config: ModelConfig,
        folder: Path | None,
        temperature: float,
        max_context: int | None,
        observe: Callable[[StepReport], None],
        clock: Clock = time.perf_counter_ns,
    ) -> None:
        size = config.tensor_parallel_size
        rank = Rank(config, model_config, folder, LoneRank(0, size) if size > 1 else TensorParallel())
        num_blocks = rank.fitting_blocks()
        if size > 1 and config.num_blocks is None:
            num_blocks = max(1, num_blocks // _LONE_SHARE)
        runner = rank.allocate(num_blocks)
        longest = longest_sequence(config, model_config)
        self.backend_name = rank.backend_name
        self.limits = Limits(
            num_tokens=config.max_num_batched_tokens,
            num_seqs=config.max_num_seqs,
            context=min(max_context or longest, longest),
            max_model_len=longest,
            num_blocks=num_blocks,
            block_size=config.block_size,
            token_buckets=tuple(buckets(config.max_num_seqs)) if rank.uses_graphs else (),
            prompt_buckets=tuple(rank.piece_sizes),
            tensor_parallel_size=size,
            all_reduce_bytes=model_config.hidden_size * rank.model.norm.weight.element_size(),
            on_cpu=not runner.kv_cache.is_cuda,
        )
        most_tokens = max(config.max_num_batched_tokens, config.max_num_seqs)
        self._operators = Operators(
            rank.model, runner.kv_cache, most_tokens, config.max_num_seqs, temperature, config.seed
        )
        self.calls = dict(Counter(call.operator for call in self._operators.tokens(1, 1)()))
        self._num_layers = runner.kv_cache.shape[0]
        self._stopwatch = make_stopwatch(runner.kv_cache.device, clock)
        self._closing: list[Executor | Collectives] = []
        executor: Executor = _RunnerExecutor(runner, rank, num_blocks)
        self._collectives = None
        if size > 1:
            executor = TensorParallelExecutor(replace(config, num_blocks=num_blocks), model_config, folder)
            self._collectives = Collectives(config.device, size)
            self._closing = [executor, self._collectives]
        self._steps = Steps(config, executor, longest, model_config.vocab_size, temperature, observe, clock)

    @torch.no_grad()
    def measure(self, point: Point) -> Times:
        """Times of one call in us, by operator."""
        sizes, operators = point.sizes, self._operators
        match point.family:
            case "tokens":
                heads = sizes[0] if sizes[0] <= self.limits.num_seqs else 0
                made = operators.tokens(sizes[0], heads)
            case "decode":
                return self._decode([sizes[1]] * sizes[0])
            case "uneven":
                contexts = uneven_contexts(*sizes, self.limits.context)
                assert contexts is not None, sizes
                return self._decode(contexts)
            case "beside":
                return self._beside(*sizes)
            case "prefill":
                made = operators.prefill(*sizes)
            case "copies":
                made = operators.copies(*sizes)
            case "all_reduce":
                assert self._collectives is not None
                return {"all_reduce": self._collectives.all_reduce(sizes[0])}
            case "step_decode":
                return self._step(*sizes)
            case "step_prefill":
                return self._steps.with_prompts(0, 0, sizes[0])
            case "step_mixed":
                return self._steps.with_prompts(*sizes)
            case other:
                raise ValueError(f"unknown family {other!r}")
        return self._stopwatch.time(made, _VISIT_S)

    def _decode(self, contexts: Sequence[int]) -> Times:
        """Decode attention; on a CPU among the other operators of a step, as these compete for the caches with it."""
        if not self.limits.on_cpu:
            return self._stopwatch.time(self._decode_calls(contexts), _VISIT_S)
        return {ATTENTION: self._step_operators(len(contexts), contexts)[ATTENTION]}

    def _beside(self, batch: int, context: int) -> Times:
        """What decode attention adds to the other operators of a step: it drives their weights out of the caches."""
        alone, beside = self._step_operators(batch, []), self._step_operators(batch, [context] * batch)
        del beside[ATTENTION]
        return {ADDED_BY_ATTENTION: (self._added_up(beside) - np.median(self._added_up(alone))).tolist()}

    def _step(self, batch: int, context: int) -> Times:
        """Whole steps of decodes; on a CPU with a single rank also the operators of a step in the middle of these."""
        times = self._steps.decode(batch, context)
        if self.limits.on_cpu and self.limits.tensor_parallel_size == 1:
            operators = self._step_operators(batch, [context + MIDDLE_STEP] * batch)
            times[ALL_OPERATORS] = self._added_up(operators).tolist()
        return times

    def _step_operators(self, batch: int, contexts: Sequence[int]) -> dict[str, list[float]]:
        """Operators of a step of `batch` decodes in their order; without contexts there is no attention."""
        num_rows = self._num_rows(batch)
        attention = self._decode_calls(contexts) if contexts else None
        return self._stopwatch.time(self._operators.tokens(num_rows, num_rows, attention), _VISIT_S)

    def _decode_calls(self, contexts: Sequence[int]) -> MakeCalls:
        """Decode attention as the engine launches it: its CUDA graphs are for the longest context it can have."""
        max_context = self.limits.max_model_len if self.limits.token_buckets else 0
        return self._operators.decode(contexts, self._num_rows(len(contexts)), max_context)

    def _num_rows(self, batch: int) -> int:
        """How many rows a step of `batch` decodes has, padding included."""
        sizes = self.limits.token_buckets
        return bucket_for(batch, sizes) if sizes else batch

    def _added_up(self, times: Times) -> NDArray[np.float64]:
        """The time of all calls of a step, for each run."""
        calls = self.calls | {ATTENTION: self._num_layers}
        return np.sum([calls[operator] * np.array(each) for operator, each in times.items()], axis=0)

    def prompts(self, num_tokens: int) -> list[int]:
        """The prompt lengths of a step of `num_tokens` prompt tokens."""
        return self._steps.split(num_tokens)

    def close(self) -> None:
        """End all processes."""
        for each in self._closing:
            each.close()


@cache
def uneven_contexts(batch: int, mean: int, percent: int, longest: int) -> tuple[int, ...] | None:
    """Contexts of `batch` sequences of that mean, whose standard deviation is `percent` of it.

    The contexts are quantiles of a log-normal distribution, cut at 1 and `longest`, so equal arguments give equal
    contexts. The sigma of the distribution is at most 0.7, with which 2 contexts deviate by 44 %, 8 by 64 % and many by
    78 %. For a larger deviation the longest eighth of the contexts grows instead. None if no such contexts have about
    this mean and deviation.
    """
    quantiles = np.array([NormalDist().inv_cdf((i + 0.5) / batch) for i in range(batch)])
    num_long = -(-batch // _LONG_ONE_IN)
    low, high = 0.0, _LARGEST_SIGMA
    for _ in range(40):
        sigma = (low + high) / 2
        contexts = np.exp(min(sigma, _SIGMA_OF_MOST) * quantiles)
        contexts[batch - num_long :] *= math.exp(max(0.0, sigma - _SIGMA_OF_MOST))
        for _ in range(8):  # cutting moves the mean
            contexts = np.clip(contexts * (mean / contexts.mean()), 1, longest)
        low, high = (sigma, high) if contexts.std() * 100 < percent * contexts.mean() else (low, sigma)
    whole = np.rint(contexts)
    if abs(whole.mean() / mean - 1) > _CLOSE or abs(whole.std() * 100 / (percent * whole.mean()) - 1) > _CLOSE:
        return None
    return tuple(int(context) for context in whole)
