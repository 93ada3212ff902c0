"""From samples to the tables of a profile, at the medians of all that was timed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

from engine.core.work import ChunkWork, StepWork
from simulator.costs.profiled import ProfiledCost
from simulator.models.model import Model
from simulator.profile.meta import ProfileMeta
from simulator.profile.profile import Profile
from simulator.profiler.samples import (
    ADDED_BY_ATTENTION,
    ALL_OPERATORS,
    ATTENTION,
    DISTURBED,
    Point,
    Samples,
    spread_of,
)
from simulator.profiler.whole_steps import MIDDLE_STEP

_HEADS = ("lm_head", "sampler")
_NOTHING_FITTED = {
    "step_overhead_us": 0.0, "sequence_overhead_us": 0.0, "prefill_layer_us": 0.0, "mixing_factor": 1.0,
    "kernel_factor": 1.0,
}  # fmt: skip
_LONGEST_STALL = 3.0  # longer steps count as this multiple of the median, so that a single stall decides little

Split = Callable[[int], list[int]]
"""The prompt lengths of a step, by its number of prompt tokens."""


def make_profile(samples: Samples, meta: ProfileMeta, model: Model, split: Split, *, on_a_line: bool) -> Profile:
    """The profile of `samples`; the rest of a step is the time of a whole step beyond the prices of its operators.

    `on_a_line`: whether the rest of a step is linear in its tokens, as on a CPU, where nothing is launched ahead.
    """
    meta = replace(meta, mean_over_median=round(mean_over_median(samples), 4))
    tables = {
        "tokens": _operator_table(samples, "num_tokens", lambda name: name not in _HEADS),
        "sequences": _operator_table(samples, "num_sequences", lambda name: name in _HEADS),
        "attention": _with_added(samples, _attention_table(samples), meta.num_layers),
        "deviations": _with_added(samples, _deviation_table(samples), meta.num_layers),
        "all_reduce": _plain_table(samples, "all_reduce", "num_bytes"),
        "copies": _plain_table(samples, "copies", "num_blocks"),
    }
    operators = Profile(meta, {name: table for name, table in tables.items() if len(table)})
    cost = ProfiledCost(operators, model, meta.tensor_parallel_size, _NOTHING_FITTED, of_means=False)
    steps = _step_table(samples, cost, split, on_a_line)
    return replace(operators, rows={**operators.rows} | ({"steps": steps} if len(steps) else {}))


def mean_over_median(samples: Samples) -> float:
    """The mean time of whole decode steps as a multiple of their median.

    Disturbed steps count: a latency is a sum of steps, those in slow moments of the machine included.
    """
    ratios = []
    for point in samples.points("step_decode"):
        name = str(point.sizes[0])
        every = np.array(samples.times(point, name) + samples.times(point, DISTURBED)) / samples.median(point, name)
        ratios.append(np.minimum(every, _LONGEST_STALL).mean())
    return float(np.mean(ratios)) if ratios else 1.0


def noise(samples: Samples, families: Iterable[str]) -> float:
    """Median over all points of half the interquartile range as a share of the median."""
    shares = [
        samples.spread(point, operator) / samples.median(point, operator)
        for family in families
        for point in samples.points(family)
        for operator in samples.operators(point)
        if operator != ADDED_BY_ATTENTION  # a difference of two times
    ]
    return float(np.median(shares)) if shares else 0.0


def _operator_table(samples: Samples, axis: str, belongs: Callable[[str], bool]) -> pd.DataFrame:
    rows = [
        {"operator": operator, axis: point.sizes[0], **_times(samples, point, operator)}
        for point in samples.points("tokens")
        for operator in samples.operators(point)
        if belongs(operator)
    ]
    return pd.DataFrame(rows)


def _attention_table(samples: Samples) -> pd.DataFrame:
    prefill = [
        {
            "prefill_tokens": point.sizes[0], "prefill_context": point.sizes[1], "num_decodes": 0, "decode_context": 0,
            **_times(samples, point, ATTENTION),
        }
        for point in samples.points("prefill")
    ]  # fmt: skip
    decode = [
        {
            "prefill_tokens": 0, "prefill_context": 0, "num_decodes": point.sizes[0], "decode_context": point.sizes[1],
            **_times(samples, point, ATTENTION),
        }
        for point in samples.points("decode")
    ]  # fmt: skip
    return pd.DataFrame(prefill + decode)


def _deviation_table(samples: Samples) -> pd.DataFrame:
    names = ("num_decodes", "decode_context", "deviation_pct")
    rows = [
        {**dict(zip(names, point.sizes, strict=True)), **_times(samples, point, ATTENTION)}
        for point in samples.points("uneven")
    ]
    return pd.DataFrame(rows)


def _with_added(samples: Samples, table: pd.DataFrame, num_layers: int) -> pd.DataFrame:
    """`table` of attention in one layer, with what decodes add to the other operators of a step put into their times.

    Beyond the largest measured step of decodes the addition stays: the caches then hold nothing more to drive out.
    """
    added_us = _added_by_attention(samples)
    if table.empty or added_us.empty:
        return table
    more_us = np.interp(table["num_decodes"] * table["decode_context"], [0, *added_us.index], [0.0, *added_us])
    return table.assign(time_us=table["time_us"] + more_us / num_layers)


def _added_by_attention(samples: Samples) -> pd.Series[float]:
    """What decode attention adds to the other operators of a step, us, over the sum of the contexts.

    It grows with this sum and depends on nothing else; deviations from that are taken for noise.
    """
    points = samples.points("beside")
    if not points:
        return pd.Series(dtype=np.float64)
    by_tokens = pd.Series([samples.median(point, ADDED_BY_ATTENTION) for point in points])
    by_tokens = by_tokens.groupby([math.prod(point.sizes) for point in points]).mean()
    return pd.Series(np.maximum(isotonic_regression(by_tokens).x, 0.0), by_tokens.index)


def _plain_table(samples: Samples, family: str, axis: str) -> pd.DataFrame:
    rows = [
        {axis: point.sizes[0], **_times(samples, point, operator)}
        for point in samples.points(family)
        for operator in samples.operators(point)
    ]
    return pd.DataFrame(rows)


def _step_table(samples: Samples, cost: ProfiledCost, split: Split, on_a_line: bool) -> pd.DataFrame:
    """What steps took beyond their operators, by kind, over their tokens.

    It is a difference of two long times, and so mostly noise: a line through all sizes has few parameters, and in its
    fit a step weighs the less the longer it takes. A GPU gets its kernels ahead of time: beyond them a step takes what
    launching takes, until the kernels take longer than that; there each number of tokens has a time of its own.
    Where the operators were timed right after the steps, their times of that moment are subtracted, not their medians
    of all moments: a slow phase of a shared machine then hits both sides of the difference.
    """
    beyond = {
        "decode": [_beyond_decode(samples, cost, point) for point in samples.points("step_decode")],
        **{
            kind: [_beyond_prompts(samples, cost, split, point) for point in samples.points(f"step_{kind}")]
            for kind in ("prefill", "mixed")
        },
    }
    rows = []
    for kind, entries in beyond.items():
        if not entries:
            continue
        num_tokens, time, rest, spread = np.array(entries).T
        sizes = np.unique(num_tokens)
        if on_a_line:
            sizes = np.unique(sizes[[0, -1]])
            times = np.polyval(np.polyfit(num_tokens, rest, len(sizes) - 1, w=1 / time), sizes)
        else:
            times = np.array([rest[num_tokens == size].mean() for size in sizes])
        times = np.maximum(times, 0.0)  # noise can put it below
        spread_us = np.average(spread, weights=1 / time**2)
        rows += [
            {"kind": kind, "num_tokens": int(size), "time_us": time_us, "spread_us": spread_us}
            for size, time_us in zip(sizes, times, strict=True)
        ]
    return pd.DataFrame(rows)


def _beyond_decode(samples: Samples, cost: ProfiledCost, point: Point) -> tuple[float, float, float, float]:
    """A step of decodes: its number of tokens, its time, its time beyond the operators, and the spread; all in us."""
    batch, context = point.sizes
    time_us = samples.median(point, str(batch))
    if ALL_OPERATORS in samples.operators(point):
        operators_us = samples.median(point, ALL_OPERATORS)
    else:
        operators_us = cost.step_ns(_work([], batch, context + MIDDLE_STEP)) * 1e-3
    return batch, time_us, time_us - operators_us, samples.spread(point, str(batch))


def _beyond_prompts(
    samples: Samples, cost: ProfiledCost, split: Split, point: Point
) -> tuple[float, float, float, float]:
    """A step with prompts: what `_beyond_decode` returns.

    Such steps are timed at many numbers of tokens close to the point's. So the median is taken of their times as
    multiples of their prices, and the point's price is multiplied by it.
    """
    *decodes, num_prompt_tokens = point.sizes
    batch, context = decodes or (0, 0)

    def priced_us(count: int) -> float:
        return cost.step_ns(_work(split(count), batch, context + 3)) * 1e-3

    prices = {count: priced_us(int(count)) for count in samples.operators(point)}
    factors = [time / price for count, price in prices.items() for time in samples.times(point, count)]
    factor, operators_us = float(np.median(factors)), priced_us(num_prompt_tokens)
    rest_us, spread_us = (factor - 1) * operators_us, spread_of(factors) * operators_us
    return batch + num_prompt_tokens, factor * operators_us, rest_us, spread_us


def _work(prompts: list[int], batch: int, context: int) -> StepWork:
    """A step of whole prompts and of decodes of equal contexts."""
    chunks = [ChunkWork(0, length, is_last=True) for length in prompts]
    return StepWork(chunks, batch, batch * context, batch * context**2)


def _times(samples: Samples, point: Point, operator: str) -> dict[str, float]:
    return {"time_us": samples.median(point, operator), "spread_us": samples.spread(point, operator)}
