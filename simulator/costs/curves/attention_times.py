"""Time of attention in all layers, interpolated in a profile's tables.

    decode only   D(n, c)             n decodes of context c
    prefill only  sum of P(s, p)      chunks of s tokens after p others; the fixed cost of a call that serves all chunks
                                      counts once
    mixed         P + D + mixing·X(s, n, c), or P + reads·D where mixed batches were not measured

X is the time of a mixed batch beyond D and P: a kernel that serves both is slower for the decodes. X hardly depends on
p, and is the median over all p that were measured. `reads` says how often the kernels of the device read the KV of a
decode beside prompts (`Model.kv_reads`): decodes wait for memory. Contexts of different lengths take as long as
if each were c = mean + gain·standard deviation. A profile may instead hold measured times of such contexts
(`simulator.costs.curves.deviation`).
"""

from __future__ import annotations

import functools
import math

import numpy as np

from simulator.costs.curves.curve import Curve, Surface, flat
from simulator.costs.curves.deviation import DeviationBatch, DeviationCost
from simulator.costs.known_times import KnownTimes
from simulator.profile.profile import Profile
from simulator.table import Table, groups


def _pairs(chunk: float, start: float) -> float:
    """Query-key pairs of a chunk of prompt tokens after `start` others: chunk·start + chunk·(chunk + 1)/2."""
    return chunk * start + chunk * (chunk + 1) / 2


def _contexts(num_decodes: float, context: float) -> float:
    return num_decodes * context


def _rows(table: Table, row: str, x: str, y: str = "time_us") -> dict[float, tuple[list[float], list[float]]]:
    return {float(value): (group[x].tolist(), group[y].tolist()) for value, group in groups(table, row)}


class AttentionCost:
    """Attention of all layers in ns."""

    def __init__(self, profile: Profile, mixing_factor: float, kv_reads: float = 1.0) -> None:
        self.decode, self.prefill, self._mixing = _surfaces(profile)
        first = self.prefill.at(self.prefill.rows[0])
        self._fixed = first.ys[0] if profile.meta.batched_prefill else 0.0
        self._chunks = Surface(dict.fromkeys(self._mixing, ([0.0], [0.0])), None) if self._mixing else None
        self._factor = mixing_factor
        self._starts_ns = KnownTimes()
        self._kv_reads = 1.0 if self._mixing else kv_reads
        self._decode_gain, self._mixed_gain = _gains(profile.rows.get("uneven"))
        table, layers_ns = profile.rows.get("deviations"), 1e3 * profile.meta.num_layers
        self._deviations = None if table is None else DeviationCost(table, self.decode, layers_ns)

    def decode_gain(self, num_decodes: int) -> float:
        """The gain of a decode step: its contexts count as their mean plus this many standard deviations."""
        return self._decode_gain(num_decodes) if self._decode_gain else 0.0

    def deviation_batch(self, num_decodes: int) -> DeviationBatch | None:
        """The time of uneven contexts beyond that of even ones, for a number of decodes; None if not measured."""
        return self._deviations.at(num_decodes) if self._deviations else None

    def from_start(self, chunk: int) -> float:
        """The time of the first `chunk` tokens of a prompt, in ns."""
        time = self._starts_ns.get(chunk)
        if not time:
            time = self.prefill.first(chunk)
            self._starts_ns.keep(chunk, time)
        return time

    def fixed_ns(self, num_chunks: int) -> float:
        """The fixed cost of attention that a sum over `num_chunks` chunks counts too often."""
        return self._fixed * (num_chunks - 1)

    def beside_prefill(
        self, num_prefill_tokens: int, num_decodes: int, total: int, total_of_squares: int, unread: float, least: float
    ) -> tuple[float, float]:
        """What decodes, with these sums of contexts, add to a step of `num_prefill_tokens` prompt tokens, in ns; and
        the context at which they are priced, as a multiple of the last measured one. `unread` tokens of each context
        are in the device's cache, and `least` of it counts at least."""
        mean, spread = total / num_decodes, deviation(num_decodes, total, total_of_squares)
        if unread:
            mean = read_context(mean, unread, least)
        gain = self._mixed_gain.at(num_prefill_tokens)(num_decodes) if self._mixed_gain else 0.0
        context = mean + gain * spread
        curve = self.decode.at(num_decodes)
        time = self._kv_reads * curve(context)
        if extra_of := self.deviation_batch(num_decodes):
            time += extra_of(mean, spread)
        if self._chunks is not None:
            low, high, weight = self._chunks.bracket(num_prefill_tokens)
            extra = self._mixing[low].at(num_decodes)(context)
            if weight:
                extra += weight * (self._mixing[high].at(num_decodes)(context) - extra)
            time += self._factor * extra
        return time, context / curve.end


def read_context(context: float, unread: float, least: float) -> float:
    """The context that takes as long as `context` of which so many tokens are in the device's cache."""
    return max(context - unread, least * context)


def deviation(num_decodes: int, total: int, total_of_squares: int) -> float:
    """Standard deviation of the contexts; bit for bit the same after each has grown by one token."""
    return math.sqrt(max(num_decodes * total_of_squares - total * total, 0)) / num_decodes


@functools.lru_cache(maxsize=4)  # calibrations price with the same profile over and over
def _surfaces(profile: Profile) -> tuple[Surface, Surface, dict[float, Surface]]:
    """D, P and X of the module's description, the latter for each measured chunk; all layers, ns."""
    table = profile.rows["attention"]
    table = table.assign(time_us=table["time_us"] * (1e3 * profile.meta.num_layers))
    decode_only, prefill_only = table["prefill_tokens"] == 0, table["num_decodes"] == 0
    decode = Surface(_rows(table[decode_only], "num_decodes", "decode_context"), _contexts)
    prefill = Surface(_rows(table[prefill_only], "prefill_tokens", "prefill_context"), _pairs)
    return decode, prefill, _mixing(table[~decode_only & ~prefill_only], decode, prefill)


def _mixing(table: Table, decode: Surface, prefill: Surface) -> dict[float, Surface]:
    """X for each measured chunk, over number and context of the decodes."""
    if table.empty:
        return {}
    keys = ["prefill_tokens", "num_decodes", "decode_context"]
    points = zip(*(table[name].tolist() for name in (*keys, "prefill_context", "time_us")), strict=True)
    extras: dict[tuple[int, int, int], list[float]] = {}
    for chunk, n, context, start, time in points:
        extra = time - (decode.at(n)(context) + prefill.at(chunk)(start))
        extras.setdefault((chunk, n, context), []).append(extra)
    medians = [(*point, float(np.median(extras[point]))) for point in sorted(extras)]
    table = Table(dict(zip([*keys, "extra"], zip(*medians, strict=True), strict=True)))
    return {
        float(chunk): Surface(_rows(group, "num_decodes", "decode_context", "extra"), _contexts)
        for chunk, group in groups(table, "prefill_tokens")
    }


def _gains(table: Table | None) -> tuple[Curve | None, Surface | None]:
    """Gains of decode steps over the batch, and of mixed steps over chunk and batch."""
    if table is None:
        return None, None
    alone, mixed = table[table["prefill_tokens"] == 0], table[table["prefill_tokens"] > 0]
    decode = flat(alone["num_decodes"].tolist(), alone["gain"].tolist()) if len(alone) else None
    return decode, Surface(_rows(mixed, "prefill_tokens", "num_decodes", "gain"), None) if len(mixed) else None
