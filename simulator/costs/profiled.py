"""Step times from a profile: the sum of its operators' measured times for the shapes of the plan.

    step = operators by tokens + operators by sequences + attention + scattered KV blocks + all-reduces + copies
           + the rest of a step

That is a median, as a profile holds, or the fastest that it holds. Of decode steps it also tells how much longer they
take in the mean, of which latencies are sums; steps with prompts are long, and their means hardly differ from medians.
Tokens are padded to the profile's buckets where the engine replays CUDA graphs. What lies between measured points is
interpolated (`simulator.costs.curve`), attention as `simulator.costs.attention` says; an all-reduce of the embedding
and two per layer carry tokens·hidden_size elements each. A few constants stand for what a profile of kernels cannot
show.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.core.plan import StepPlan
from simulator.costs.attention import AttentionCost, deviation
from simulator.costs.curve import Curve
from simulator.costs.deviation import DeviationBatch
from simulator.hardware import ModelShape
from simulator.profile.checks import check_fits
from simulator.profile.curves import all_reduce_of, curve_of, operators, rest_of, scattered_of, unused_constants
from simulator.profile.profile import Profile

_US = 1e3  # ns
_FEW_STEPS = 16  # so many are priced faster one by one than as arrays
_ABOUT = 8 / 7  # whole steps are profiled at up to an eighth less than the tokens asked for


class Outside(NamedTuple):
    """An axis on which steps lay beyond the measured range: how many plans had such steps, and how many times its end
    they reached at most."""

    plans: int
    factor: float


class _DecodeBatch(NamedTuple):
    """What a decode step of one batch size takes."""

    base: float  # all but attention, ns
    attention: Curve  # over the context that counts, ns
    gain: float
    uneven: DeviationBatch | None
    outside: tuple[tuple[str, float], ...]


class ProfiledCost:
    """Cost model from `profile` for a model of this shape.

    Args:
        values: the value of each of `simulator.costs.constants.profiled_constants`.
        of_means: price decode steps at their mean instead of their median.

    Attributes:
        profile: what it was made from.
        prices_scattered: whether steps take longer if tokens lie scattered.
        unused_constants: those without effect, as the profile measured what they stand for, or has nothing they scale.

    Raises:
        ProfileError: the profile is of another shape or of other ranks.
    """

    def __init__(
        self,
        profile: Profile,
        model: ModelShape,
        tensor_parallel_size: int,
        values: Mapping[str, float],
        *,
        of_means: bool = True,
    ) -> None:
        check_fits(profile, model, tensor_parallel_size)
        self.profile = profile
        self.unused_constants = unused_constants(profile.tables)
        self.num_plans = 0
        self._meta = profile.meta
        self._factor = profile.meta.mean_over_median if of_means else 1.0
        self._buckets = profile.meta.token_buckets
        self._tokens = operators(profile, "tokens", "num_tokens")
        self._sequences = operators(profile, "sequences", "num_sequences")
        self._attention = AttentionCost(profile, values["mixing_factor"])
        self._scattered = scattered_of(profile)
        self.prices_scattered = self._scattered is not None
        self._all_reduce = all_reduce_of(profile, model, tensor_parallel_size, values)
        self._copies = curve_of(profile.tables.get("copies"), "num_blocks")
        self._rest = rest_of(profile.tables.get("steps"))
        is_reduced_by_table = tensor_parallel_size > 1 and "all_reduce" in profile.tables
        self._reduced_end = self._all_reduce.end if is_reduced_by_table else math.inf
        # a single point holds for all steps
        self._rest_end = {kind: curve.end for kind, curve in (self._rest or {}).items() if len(curve.xs) > 1}
        rest_ends = (self._rest_end.get(kind, math.inf) for kind in ("prefill", "mixed"))
        self._tokens_end = min(self._tokens.end, self._reduced_end, *rest_ends)  # of steps with prompts
        self._step_ns = values["step_overhead_us"] * _US
        self._prefill_layers_ns = values["prefill_layer_us"] * _US * profile.meta.num_layers
        self._tokens_ns: dict[int, float] = {}
        self._heads_ns: dict[int, float] = {}
        self._decodes: dict[int, _DecodeBatch] = {}
        self._outside: Counter[str] = Counter()
        self._farthest: dict[str, float] = {}

    def step_ns(self, plan: StepPlan) -> int:
        self.num_plans += 1
        if plan.prefills and self._meta.padded_steps == "all":
            plan = _of_decodes(plan)
        num_decodes = plan.num_decodes
        if plan.prefills:
            time = self._with_prefills(plan)
        else:
            batch = self._decodes.get(num_decodes) or self._decode_batch(num_decodes)
            context, spread = _contexts(batch, plan)
            if batch.outside or context > batch.attention.end:
                self._note(*batch.outside, ("decode context", context / batch.attention.end))
            time = _decode_time(batch, context, spread)
        if self._scattered:
            num_scattered = plan.num_scattered_tokens
            time += self._scattered(num_scattered)
            if num_scattered > self._scattered.end:
                self._note(("scattered tokens", num_scattered / self._scattered.end))
        if plan.copies and self._copies:
            time += self._copies(len(plan.copies))
            self._note(("copies", len(plan.copies) / self._copies.end))
        return max(1, round(time if plan.prefills else self._factor * time))

    def decode_ns(self, plan: StepPlan, num_steps: int) -> NDArray[np.int64]:
        num_decodes, total, scattered = plan.num_decodes, plan.num_context_tokens, plan.num_scattered_tokens
        batch = self._decodes.get(num_decodes) or self._decode_batch(num_decodes)
        first, spread = _contexts(batch, plan)
        last, end = first + num_steps - 1, batch.attention.end
        self._note(("decode context", last / end), is_counted=first > end)  # then `step_ns` has counted the plan
        times: NDArray[np.float64]
        if num_steps <= _FEW_STEPS:
            ahead = [(total + num_decodes * k) / num_decodes + batch.gain * spread for k in range(num_steps)]
            each = [_decode_time(batch, context, spread) for context in ahead]
            if self._scattered:
                each = [time + self._scattered(scattered + num_decodes * k) for k, time in enumerate(each)]
            times = np.array(each)
        else:
            grown = num_decodes * np.arange(num_steps, dtype=np.float64)
            contexts = (total + grown) / num_decodes + batch.gain * spread
            times = batch.base + batch.attention.many(contexts)
            if batch.uneven:
                times += batch.uneven.many(contexts, spread)
            if self._scattered:
                times += self._scattered.many(scattered + grown)
        if self._scattered and (farthest := scattered + num_decodes * (num_steps - 1)) > self._scattered.end:
            is_counted = scattered > self._scattered.end
            self._note(("scattered tokens", farthest / self._scattered.end), is_counted=is_counted)
        if plan.copies and self._copies:
            times[0] += self._copies(len(plan.copies))
        return np.maximum(np.rint(self._factor * times), 1).astype(np.int64)

    def outside(self) -> dict[str, Outside]:
        """Where plans lay beyond the measured ranges so far; a plan counts once however many steps it ran for.

        Runs of steps count as far as they were priced, which an arrival may have cut short.
        """
        return {axis: Outside(count, self._farthest[axis]) for axis, count in sorted(self._outside.items())}

    # -- parts of a step ------------------------------------------------------------------------------------------

    def _decode_batch(self, num_decodes: int) -> _DecodeBatch:
        padded = self._padded(num_decodes, is_decode=True)
        heads = padded if self._meta.padded_heads else num_decodes
        base = self._layers(padded) + self._heads(heads) + self._step_ns
        base += self._rest["decode"](num_decodes) if self._rest else 0.0
        curve = self._attention.decode.at(num_decodes)
        outside = (
            *self._beyond("decode", num_decodes, padded, heads),
            ("decode batch", num_decodes / self._attention.decode.end),
        )
        batch = _DecodeBatch(
            base,
            curve,
            self._attention.decode_gain(num_decodes),
            self._attention.deviation_batch(num_decodes),
            tuple(entry for entry in outside if entry[1] > 1),
        )
        self._decodes[num_decodes] = batch
        return batch

    def _with_prefills(self, plan: StepPlan) -> float:
        attention, num_decodes = self._attention, plan.num_decodes
        num_prefill_tokens, num_sampled, time = 0, num_decodes, self._step_ns
        farthest = longest = 0.0
        for _, start, chunk, is_last in plan.prefills:
            num_prefill_tokens += chunk
            num_sampled += is_last
            curve = attention.prefill.at(chunk)
            time += curve(start)
            if start > curve.end or chunk > attention.prefill.end:
                farthest = max(farthest, start / (curve.end or 1.0))  # some rows are measured at the start 0 alone
                longest = max(longest, chunk / attention.prefill.end)
        if longest:
            self._note(("prefill context", farthest), ("prefill chunk", longest))
        time -= attention.fixed_ns(len(plan.prefills))
        if num_decodes:
            mean = plan.num_context_tokens / num_decodes
            spread = deviation(num_decodes, plan.num_context_tokens, plan.num_squared_context_tokens)
            context = attention.context_beside_prefill(num_prefill_tokens, num_decodes, mean, spread)
            time += attention.beside_prefill_ns(num_prefill_tokens, num_decodes, context, mean, spread)
            end = attention.decode.at(num_decodes).end
            if context > end or num_decodes > attention.decode.end:
                self._note(("decode context", context / end), ("decode batch", num_decodes / attention.decode.end))
        kind = "mixed" if num_decodes else "prefill"
        num_tokens = num_prefill_tokens + num_decodes
        padded = self._padded(num_tokens, is_decode=False)
        if not self._is_captured(num_tokens):
            time += self._prefill_layers_ns
        if padded > self._tokens_end or num_sampled > self._sequences.end:
            self._note(*self._beyond(kind, num_tokens, padded, num_sampled))
        if self._rest:
            time += self._rest[kind](num_tokens)
        return time + self._layers(padded) + self._heads(num_sampled)

    def _padded(self, num_tokens: int, *, is_decode: bool) -> int:
        if not self._is_captured(num_tokens, is_decode=is_decode):
            return num_tokens
        return self._buckets[bisect.bisect_left(self._buckets, num_tokens)]

    def _is_captured(self, num_tokens: int, *, is_decode: bool = False) -> bool:
        """Whether a CUDA graph serves a step of so many tokens."""
        is_kind = is_decode or self._meta.padded_steps == "all"
        return is_kind and bool(self._buckets) and num_tokens <= self._buckets[-1]

    def _layers(self, num_tokens: int) -> float:
        """The operators by tokens and the all-reduces."""
        time = self._tokens_ns.get(num_tokens)
        if time is None:
            time = self._tokens.total(num_tokens, round_up=self._meta.round_up_tokens) + self._all_reduce(num_tokens)
            self._tokens_ns[num_tokens] = time
        return time

    def _heads(self, num_sequences: int) -> float:
        if num_sequences == 0:
            return 0.0
        time = self._heads_ns.get(num_sequences)
        if time is None:
            time = self._heads_ns[num_sequences] = self._sequences.total(num_sequences, round_up=False)
        return time

    def _beyond(self, kind: str, num_tokens: int, padded: int, num_sampled: int) -> list[tuple[str, float]]:
        """How many times the last measured sizes of all but attention a step has."""
        rest = num_tokens / self._rest_end.get(kind, math.inf)
        return [
            ("tokens", padded / self._tokens.end),
            ("sequences", num_sampled / self._sequences.end),
            ("all-reduce", padded / self._reduced_end),
            ("rest of a step", rest if rest > _ABOUT else 0.0),
        ]

    def _note(self, *axes: tuple[str, float], is_counted: bool = False) -> None:
        for axis, factor in axes:
            if factor > 1:
                self._outside[axis] += not is_counted
                self._farthest[axis] = max(factor, self._farthest.get(axis, 0.0))


def _of_decodes(plan: StepPlan) -> StepPlan:
    """A step in which every prompt computes a single token, as one of decodes: so it is batched and captured."""
    if any(chunk.num_tokens > 1 for chunk in plan.prefills):
        return plan
    contexts = [chunk.start + 1 for chunk in plan.prefills]
    return plan._replace(
        prefills=[],
        num_decodes=plan.num_decodes + len(contexts),
        num_context_tokens=plan.num_context_tokens + sum(contexts),
        num_squared_context_tokens=plan.num_squared_context_tokens + sum(context**2 for context in contexts),
    )


def _contexts(batch: _DecodeBatch, plan: StepPlan) -> tuple[float, float]:
    """The context that counts in the first step of a plan of decodes, and the standard deviation of the contexts."""
    mean = plan.num_context_tokens / plan.num_decodes
    if not batch.gain and not batch.uneven:
        return mean, 0.0
    spread = deviation(plan.num_decodes, plan.num_context_tokens, plan.num_squared_context_tokens)
    return mean + batch.gain * spread, spread


def _decode_time(batch: _DecodeBatch, context: float, spread: float) -> float:
    time = batch.base + batch.attention(context)
    return time + batch.uneven(context, spread) if batch.uneven else time
