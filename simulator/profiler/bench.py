"""The real engine set up for measuring, and how the points of every family are measured on it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import NormalDist

import numpy as np
import torch
from numpy.typing import NDArray

from engine.engine_config import EngineConfig
from engine.llm_engine import Executor, StepReport
from engine.models.model_config import ModelConfig
from engine.models.parallel import TensorParallel
from engine.runner.cuda_graphs import bucket_for, buckets
from engine.runner.executor import Rank, longest_sequence
from engine.runner.model_runner import ModelRunner, StepTokens
from engine.runner.step_inputs import StepInputs
from engine.runner.tensor_parallel import TensorParallelExecutor
from simulator.profiler.collectives import Collectives
from simulator.profiler.operators import LoneRank, Operators
from simulator.profiler.samples import (
    ADDED_BY_ATTENTION,
    ADDED_BY_SCATTERING,
    ALL_OPERATORS,
    ATTENTION,
    Point,
    Times,
)
from simulator.profiler.steps import MIDDLE_STEP, Steps
from simulator.profiler.stopwatch import MakeCalls, make_stopwatch

_VISIT_S = 0.004  # how long operators are timed for in one visit, if a single run is not longer
_LONE_SHARE = 3  # with several ranks, the KV pool to measure on is one of so many parts of what fits
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
    tensor_parallel_size: int
    all_reduce_bytes: int
    """Of one token."""
    on_cpu: bool = True
    """Caches then hold much of what a step reads, and operators depend on what runs beside them."""

    def holds(self, batch: int, context: int) -> bool:
        """Whether the KV pool holds so many sequences of this context, with room for some to grow."""
        return batch * (-(-context // self.block_size) + 1) <= 0.95 * self.num_blocks


class _RunnerExecutor:
    """Executes plans on a runner of this process."""

    def __init__(self, runner: ModelRunner, num_blocks: int, backend_name: str) -> None:
        self._runner = runner
        self.num_blocks = num_blocks
        self.backend_name = backend_name

    def execute(self, inputs: StepInputs) -> StepTokens:
        return self._runner.execute(inputs)

    def close(self) -> None:
        """Nothing of its own."""


class Bench:
    """A model loaded on this machine; `measure` times one point.

    Args:
        folder: of the weights, where they are not random.
        temperature: that requests sample with.
        max_context: longest context to measure; None for what the engine allows.
        observe: what a replay does with each step's report.

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
        self._stopwatch = make_stopwatch(runner.kv_cache.device)
        self._closing: list[Executor | Collectives] = []
        executor: Executor = _RunnerExecutor(runner, num_blocks, rank.backend_name)
        self._collectives = None
        if size > 1:
            executor = TensorParallelExecutor(replace(config, num_blocks=num_blocks), model_config, folder)
            self._collectives = Collectives(config.device, size)
            self._closing = [executor, self._collectives]
        self._steps = Steps(config, executor, longest, model_config.vocab_size, temperature, observe)

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
        """Decode attention; a CPU holds part of the weights and KV in its caches, so there other operators run too."""
        if not self.limits.on_cpu:
            return self._stopwatch.time(self._decode_calls(contexts), _VISIT_S)
        return {ATTENTION: self._step_operators(len(contexts), contexts)[ATTENTION]}

    def _beside(self, batch: int, context: int) -> Times:
        """What decode attention adds to the other operators of a step, whose weights it drives out of the caches, and
        what it adds to the step if all KV blocks lie scattered."""
        contexts = [context] * batch
        alone, beside = self._step_operators(batch, []), self._step_operators(batch, contexts)
        scattered = self._added_up(self._step_operators(batch, contexts, scattered=True))
        added_by_scattering = scattered - np.median(self._added_up(beside))
        del beside[ATTENTION]
        added_by_attention = self._added_up(beside) - np.median(self._added_up(alone))
        return {
            ADDED_BY_ATTENTION: added_by_attention.tolist(),
            ADDED_BY_SCATTERING: added_by_scattering.tolist(),
        }

    def _step(self, batch: int, context: int) -> Times:
        """Whole steps of decodes; on a CPU also the operators of one in their middle, if no rank waits for others."""
        times = self._steps.decode(batch, context)
        if self.limits.on_cpu and self.limits.tensor_parallel_size == 1:
            operators = self._step_operators(batch, [context + MIDDLE_STEP] * batch)
            times[ALL_OPERATORS] = self._added_up(operators).tolist()
        return times

    def _step_operators(
        self, batch: int, contexts: Sequence[int], *, scattered: bool = False
    ) -> dict[str, list[float]]:
        """Operators of a step of so many decodes in their order; without contexts there is no attention."""
        num_rows = self._num_rows(batch)
        attention = self._decode_calls(contexts, scattered=scattered) if contexts else None
        return self._stopwatch.time(self._operators.tokens(num_rows, num_rows, attention), _VISIT_S)

    def _decode_calls(self, contexts: Sequence[int], *, scattered: bool = False) -> MakeCalls:
        """Decode attention as the engine launches it: its CUDA graphs are for the longest context it can have."""
        max_context = self.limits.max_model_len if self.limits.token_buckets else 0
        return self._operators.decode(contexts, self._num_rows(len(contexts)), max_context, scattered=scattered)

    def _num_rows(self, batch: int) -> int:
        """How many rows a step of so many decodes has, padding included."""
        sizes = self.limits.token_buckets
        return bucket_for(batch, sizes) if sizes else batch

    def _added_up(self, times: Times) -> NDArray[np.float64]:
        """Of all calls of a step, run by run."""
        calls = self.calls | {ATTENTION: self._num_layers}
        return np.sum([calls[operator] * np.array(each) for operator, each in times.items()], axis=0)

    def prompts(self, num_tokens: int) -> list[int]:
        """How a step of so many prompt tokens is divided among prompts."""
        return self._steps.split(num_tokens)

    def close(self) -> None:
        """End all processes."""
        for each in self._closing:
            each.close()


@cache
def uneven_contexts(batch: int, mean: int, percent: int, longest: int) -> tuple[int, ...] | None:
    """Contexts of `batch` sequences of that mean, whose standard deviation is `percent` of it.

    They are quantiles of a log-normal distribution, so that equal arguments give equal contexts, cut at 1 and
    `longest`. Its sigma is 0.7 at most, with which 2 contexts deviate by 44 %, 8 by 64 % and many by 78 %; beyond that
    it is the longest of them that grow, one in eight. None where no such contexts come near mean and deviation.
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
