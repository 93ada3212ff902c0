"""Step times from a profile: the sum of its operators' measured times for the sizes of the step.

    step = operators by tokens + operators by sequences + attention + all-reduces + copies + the rest of a step

The times of a profile are medians. Of decode steps a profile also tells by what factor their mean exceeds their median,
and decode steps are priced at their mean, which is what latencies add up; steps with prompts are long, and their means
hardly differ from their medians. Tokens are padded to the profile's buckets where the engine replays CUDA graphs. Sizes
between measured points are interpolated (`curves/curve.py`), attention as `curves/attention_times.py` says;
an all-reduce of the embedding and two per layer carry tokens·hidden_size elements each. A few constants stand for times
that a profile of kernels cannot show.

With speculation a decode computes several tokens. All of them count in the operators by tokens, in those by sequences
(LM head and sampler) and in the rest of a step. Decode attention takes as long as for one token: it reads the same KV
once, and profiles measure it with one token per decode only.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from engine.core.work import StepWork
from simulator.costs.cost import step_time_ns
from simulator.costs.curves.attention_times import AttentionCost
from simulator.costs.curves.profile_curves import all_reduce_of, curve_of, operators, rest_of, unused_constants
from simulator.costs.decode_batch import DecodeBatch, of_decodes
from simulator.costs.known_times import KnownTimes
from simulator.costs.shared_reads import SharedReads
from simulator.decode_run import Durations
from simulator.models.model import Model
from simulator.profile.checks import check_fits
from simulator.profile.profile import Profile

_US = 1e3  # ns
_ABOUT = 8 / 7  # the profiler times whole steps with up to an eighth fewer tokens than their point says


class Outside(NamedTuple):
    """An axis on which steps lay beyond the measured range.

    Attributes:
        plans: how many plans had such steps.
        factor: the largest size among them, as a multiple of the last measured one.
    """

    plans: int
    factor: float


class ProfiledCost:
    """Cost model from `profile` for a model of this shape.

    Args:
        values: the value of each of `simulator.costs.constants.profiled_constants`.
        of_means: price decode steps at their mean instead of their median.
        is_async: whether the next step is planned while a step runs.
        kv_reads: how often the KV of a decode is read beside prompts, where the profile has no times of such steps.
        shared_reads: what is not read of KV that decodes share; None where each reads all of its context.

    Attributes:
        profile: where the times are from.
        kernel_factor: the constant of that name.
        num_plans: how many plans `step_ns` has priced.
        unused_constants: constants without effect, since the profile measured what they stand for, or has no times
            that they scale.

    Raises:
        ProfileError: the profile is of another model shape or another number of ranks.
    """

    def __init__(
        self,
        profile: Profile,
        model: Model,
        tensor_parallel_size: int,
        values: Mapping[str, float],
        *,
        of_means: bool = True,
        is_async: bool = True,
        kv_reads: float = 1.0,
        shared_reads: SharedReads | None = None,
    ) -> None:
        check_fits(profile, model, tensor_parallel_size)
        self.profile = profile
        self.unused_constants = unused_constants(profile.rows)
        self.num_plans = 0
        self._meta = profile.meta
        self.kernel_factor = factor = values["kernel_factor"]  # times that it does not scale are divided by it
        self._factor = factor * (profile.meta.mean_over_median if of_means else 1.0)
        self._buckets = profile.meta.token_buckets
        of_all = profile.meta.padded_steps == "all"
        self._prompt_buckets = self._buckets if of_all else profile.meta.prompt_buckets
        self._tokens = operators(profile, "tokens", "num_tokens")
        self._sequences = operators(profile, "sequences", "num_sequences")
        self._attention = AttentionCost(profile, values["mixing_factor"], kv_reads)
        self._all_reduce = all_reduce_of(profile, model, tensor_parallel_size, values)
        self._copies = curve_of(profile.rows.get("copies"), "num_blocks")
        self._rest = rest_of(profile.rows.get("steps"))
        # Where steps were timed one after the other and are planned ahead here, the host's part of a step passes while
        # the GPU computes.
        # What goes with the times of a database is time in which the GPU waits between pieces of CUDA graphs.
        was_ahead = profile.meta.planned_ahead or "database" in profile.meta.source
        self._hides_rest = is_async and bool(self._buckets) and not was_ahead
        is_reduced_by_table = tensor_parallel_size > 1 and "all_reduce" in profile.rows
        self._reduced_end = self._all_reduce.end if is_reduced_by_table else math.inf
        # A curve with a single point holds for steps of all sizes.
        self._rest_end = {kind: curve.end for kind, curve in (self._rest or {}).items() if len(curve.xs) > 1}
        rest_ends = (self._rest_end.get(kind, math.inf) for kind in ("prefill", "mixed"))
        self._tokens_end = min(self._tokens.end, self._reduced_end, *rest_ends)  # for steps with prompts
        host = (0.0, 0.0) if is_async else (profile.meta.synchronous_step_us, profile.meta.synchronous_sequence_us)
        self._step_ns = (values["step_overhead_us"] + host[0]) * _US / factor
        self._sequence_ns = (values["sequence_overhead_us"] + host[1]) * _US / factor
        self._eager_ns = profile.meta.eager_step_us * _US / factor
        self._prefill_layers_ns = values["prefill_layer_us"] * _US * profile.meta.num_layers / factor
        self._shared_reads = shared_reads
        self._least = shared_reads.least if shared_reads else 1.0
        self._tokens_ns = KnownTimes()
        self._heads_ns = KnownTimes()
        self._decodes: dict[tuple[int, int], DecodeBatch] = {}
        self._outside: Counter[str] = Counter()
        self._farthest: dict[str, float] = {}

    def step_ns(self, work: StepWork) -> int:
        self.num_plans += 1
        if work.chunks and self._meta.padded_steps == "all":
            work = of_decodes(work)
        if work.chunks:
            time = self._with_prefills(work)
        else:
            size = (work.num_decodes, work.tokens_per_decode)
            batch = self._decodes.get(size) or self._decode_batch(*size)
            context, time = batch.step(work, self._unread(work))
            if batch.outside or context > batch.attention.end:
                self._note(*batch.outside, ("decode context", context / batch.attention.end))
        if work.num_copied_blocks:
            time += self._copying(work.num_copied_blocks)
        return step_time_ns((self.kernel_factor if work.chunks else self._factor) * time)

    def decode_ns(self, work: StepWork, num_steps: int) -> Durations:
        size = (work.num_decodes, work.tokens_per_decode)
        batch = self._decodes.get(size) or self._decode_batch(*size)
        first, last, times = batch.run(work, num_steps, self._unread(work))
        end = batch.attention.end
        if last > end:  # if the first step is beyond the end too, `step_ns` has counted the plan
            self._note(("decode context", last / end), is_counted=first > end)
        if work.num_copied_blocks and self._copies:
            times[0] += self._copies(work.num_copied_blocks)  # `step_ns` has noted these copies
        if isinstance(times, list):
            return [step_time_ns(self._factor * time) for time in times]
        times *= self._factor
        np.rint(times, out=times)
        return np.maximum(times, 1.0, out=times).astype(np.int64)

    def _unread(self, work: StepWork) -> float:
        return self._shared_reads.unread(work) if work.num_saved_tokens and self._shared_reads else 0.0

    def graph_tokens(self, num_tokens: int) -> int | None:
        """Tokens of the CUDA graph that serves a step of `num_tokens` tokens; None where none does."""
        return _padded(num_tokens, self._buckets) if _is_captured(num_tokens, self._buckets) else None

    def outside(self) -> dict[str, Outside]:
        """The axes on which plans lay beyond the measured ranges so far, by name.

        A plan counts once, however many steps it covers. Steps that were priced count even if an arrival then cut the
        plan short before them.
        """
        return {axis: Outside(count, self._farthest[axis]) for axis, count in sorted(self._outside.items())}

    # -- parts of a step ------------------------------------------------------------------------------------------

    def _decode_batch(self, num_decodes: int, tokens_per_decode: int) -> DecodeBatch:
        num_tokens = num_decodes * tokens_per_decode
        padded = _padded(num_tokens, self._buckets)
        heads = padded if self._meta.padded_heads else num_tokens
        base = self._layers(padded) + self._heads(heads) + self._step_ns + num_decodes * self._sequence_ns
        if self._rest:
            base = self._with_rest(base, self._rest["decode"](num_tokens))
        curve = self._attention.decode.at(num_decodes)
        outside = (
            *self._beyond("decode", num_tokens, padded, heads),
            ("decode batch", num_decodes / self._attention.decode.end),
        )
        batch = DecodeBatch(
            base,
            curve,
            self._attention.decode_gain(num_decodes),
            self._attention.deviation_batch(num_decodes),
            self._least,
            tuple(entry for entry in outside if entry[1] > 1),
        )
        self._decodes[num_decodes, tokens_per_decode] = batch
        return batch

    def _with_prefills(self, work: StepWork) -> float:
        attention, num_decodes = self._attention, work.num_decodes
        num_decode_tokens = num_decodes * work.tokens_per_decode
        num_prefill_tokens, num_sampled = 0, num_decode_tokens
        time = self._step_ns + num_decodes * self._sequence_ns
        farthest = longest = 0.0
        for each in work.chunks:
            start, chunk = each.start, each.num_tokens
            num_prefill_tokens += chunk
            num_sampled += each.is_last
            if start == 0:
                time += attention.from_start(chunk)
                is_beyond = chunk > attention.prefill.end
            else:
                curve = attention.prefill.at(chunk)
                time += curve(start)
                is_beyond = start > curve.end or chunk > attention.prefill.end
                if is_beyond:
                    farthest = max(farthest, start / (curve.end or 1.0))  # some rows are measured at start 0 only
            if is_beyond:
                longest = max(longest, chunk / attention.prefill.end)
        if longest:
            self._note(("prefill context", farthest), ("prefill chunk", longest))
        time -= attention.fixed_ns(len(work.chunks))
        if num_decodes:
            contexts, squared = work.num_context_tokens, work.num_squared_context_tokens
            unread = self._unread(work)
            added, context = attention.beside_prefill(
                num_prefill_tokens, num_decodes, contexts, squared, unread, self._least
            )
            time += added
            if context > 1 or num_decodes > attention.decode.end:
                self._note(("decode context", context), ("decode batch", num_decodes / attention.decode.end))
        kind = "mixed" if num_decodes else "prefill"
        num_tokens = num_prefill_tokens + num_decode_tokens
        padded = _padded(num_tokens, self._prompt_buckets)
        least = 0.0
        if not _is_captured(num_tokens, self._prompt_buckets):
            time += self._prefill_layers_ns
            least = self._eager_ns
        if padded > self._tokens_end or num_sampled > self._sequences.end:
            self._note(*self._beyond(kind, num_tokens, padded, num_sampled))
        time += self._layers(padded) + self._heads(num_sampled)
        if self._rest:
            time = self._with_rest(time, self._rest[kind](num_tokens))
        return max(least, time)

    def _with_rest(self, operators: float, rest: float) -> float:
        return max(operators, rest) if self._hides_rest else operators + rest

    def _layers(self, num_tokens: int) -> float:
        """The operators by tokens and the all-reduces."""
        time = self._tokens_ns.get(num_tokens)
        if not time:
            time = self._tokens.total(num_tokens, round_up=self._meta.round_up_tokens) + self._all_reduce(num_tokens)
            self._tokens_ns.keep(num_tokens, time)
        return time

    def _heads(self, num_sampled: int) -> float:
        """The operators by sequences, for `num_sampled` tokens to sample."""
        if num_sampled == 0:
            return 0.0
        time = self._heads_ns.get(num_sampled)
        if not time:
            time = self._sequences.total(num_sampled, round_up=False)
            self._heads_ns.keep(num_sampled, time)
        return time

    def _copying(self, num_blocks: int) -> float:
        if not self._copies:
            return 0.0
        self._note(("copies", num_blocks / self._copies.end))
        return self._copies(num_blocks)

    def _beyond(self, kind: str, num_tokens: int, padded: int, num_sampled: int) -> list[tuple[str, float]]:
        """The sizes of all but attention in a step, each as a multiple of the last measured one."""
        rest = num_tokens / self._rest_end.get(kind, math.inf)
        return [
            ("tokens", padded / self._tokens.end),
            ("sequences", num_sampled / self._sequences.end),
            ("all-reduce", padded / self._reduced_end),
            ("rest of a step", rest if rest > _ABOUT else 0.0),
        ]

    def _note(self, *axes: tuple[str, float], is_counted: bool = False) -> None:
        """Remember the `axes` whose factor exceeds 1; `is_counted`: the plan at hand is counted already."""
        for axis, factor in axes:
            if factor > 1:
                self._outside[axis] += not is_counted
                self._farthest[axis] = max(factor, self._farthest.get(axis, 0.0))


def _is_captured(num_tokens: int, buckets: tuple[int, ...]) -> bool:
    """Whether CUDA graphs of these sizes serve a step of `num_tokens` tokens."""
    return bool(buckets) and num_tokens <= buckets[-1]


def _padded(num_tokens: int, buckets: tuple[int, ...]) -> int:
    return buckets[bisect.bisect_left(buckets, num_tokens)] if _is_captured(num_tokens, buckets) else num_tokens
