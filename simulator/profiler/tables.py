"""From samples to the tables of a profile: at the medians of all that was timed, and at the fastest."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

from engine.core.plan import StepPlan
from simulator.costs.cost import plan_to_price
from simulator.costs.profiled import ProfiledCost
from simulator.hardware import ModelShape
from simulator.profile.profile import Profile, ProfileMeta
from simulator.profiler.samples import (
    ADDED_BY_ATTENTION,
    ADDED_BY_SCATTERING,
    ALL_OPERATORS,
    ATTENTION,
    DISTURBED,
    Point,
    Samples,
    spread_of,
)
from simulator.profiler.steps import MIDDLE_STEP

_HEADS = ("lm_head", "sampler")
_NOTHING_FITTED = {"step_overhead_us": 0.0, "prefill_layer_us": 0.0, "mixing_factor": 1.0}
_LONGEST_STALL = 3.0  # times the median of a step: longer ones count as this, so that a single one decides little

Split = Callable[[int], list[int]]
"""How so many prompt tokens of a step were divided among prompts."""

Statistic = Callable[[Sequence[float]], float]
"""What is taken of the times of a point."""


def make_profile(samples: Samples, meta: ProfileMeta, model: ModelShape, split: Split, *, on_a_line: bool) -> Profile:
    """The profile of what was measured; whole steps are priced by its operators, and what is left is theirs.

    `on_a_line`: whether what is left grows evenly with a step's tokens, as where nothing is launched ahead.
    """
    meta = replace(meta, mean_over_median=round(mean_over_median(samples), 4))
    medians, fastest = (
        _profile_at(statistic, samples, meta, model, split, on_a_line) for statistic in (np.median, min)
    )
    tables = {name: table.assign(fastest_us=fastest.tables[name]["time_us"]) for name, table in medians.tables.items()}
    return Profile(meta, tables)


def _profile_at(
    statistic: Statistic, samples: Samples, meta: ProfileMeta, model: ModelShape, split: Split, on_a_line: bool
) -> Profile:
    """With `statistic` of what was timed as all times. Differences that were taken when they were measured are medians,
    as much shorter as all other times are than theirs."""
    pace = _pace(samples, statistic)
    tables = {
        "tokens": _operator_table(samples, statistic, "num_tokens", lambda name: name not in _HEADS),
        "sequences": _operator_table(samples, statistic, "num_sequences", lambda name: name in _HEADS),
        "attention": _with_added(samples, pace, _attention_table(samples, statistic), meta.num_layers),
        "deviations": _with_added(samples, pace, _deviation_table(samples, statistic), meta.num_layers),
        "scattered": _scattered_table(samples, pace, meta),
        "all_reduce": _plain_table(samples, statistic, "all_reduce", "num_bytes"),
        "copies": _plain_table(samples, statistic, "copies", "num_blocks"),
    }
    operators = Profile(meta, {name: table for name, table in tables.items() if table is not None and len(table)})
    cost = ProfiledCost(operators, model, meta.tensor_parallel_size, _NOTHING_FITTED, of_means=False)
    steps = _step_table(samples, statistic, cost, split, on_a_line)
    return replace(operators, tables=operators.tables | ({"steps": steps} if len(steps) else {}))


def mean_over_median(samples: Samples) -> float:
    """How much longer decode steps take in the mean than in the median, all that was timed included: a latency is a sum
    of steps, and the moments in which a machine is slow are part of it."""
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
        if operator not in (ADDED_BY_ATTENTION, ADDED_BY_SCATTERING)  # differences of two
    ]
    return float(np.median(shares)) if shares else 0.0


def _operator_table(samples: Samples, statistic: Statistic, axis: str, belongs: Callable[[str], bool]) -> pd.DataFrame:
    rows = [
        {"operator": operator, axis: point.sizes[0], **_times(samples, statistic, point, operator)}
        for point in samples.points("tokens")
        for operator in samples.operators(point)
        if belongs(operator)
    ]
    return pd.DataFrame(rows)


def _attention_table(samples: Samples, statistic: Statistic) -> pd.DataFrame:
    prefill = [
        {
            "prefill_tokens": point.sizes[0], "prefill_context": point.sizes[1], "num_decodes": 0, "decode_context": 0,
            **_times(samples, statistic, point, ATTENTION),
        }
        for point in samples.points("prefill")
    ]  # fmt: skip
    decode = [
        {
            "prefill_tokens": 0, "prefill_context": 0, "num_decodes": point.sizes[0], "decode_context": point.sizes[1],
            **_times(samples, statistic, point, ATTENTION),
        }
        for point in samples.points("decode")
    ]  # fmt: skip
    return pd.DataFrame(prefill + decode)


def _deviation_table(samples: Samples, statistic: Statistic) -> pd.DataFrame:
    names = ("num_decodes", "decode_context", "deviation_pct")
    rows = [
        {**dict(zip(names, point.sizes, strict=True)), **_times(samples, statistic, point, ATTENTION)}
        for point in samples.points("uneven")
    ]
    return pd.DataFrame(rows)


def _pace(samples: Samples, statistic: Statistic) -> float:
    """The statistic as a share of the median, of decode attention at the middle one of its points."""
    points = samples.points("decode")
    shares = [statistic(samples.times(point, ATTENTION)) / samples.median(point, ATTENTION) for point in points]
    return float(np.median(shares)) if shares else 1.0


def _with_added(samples: Samples, pace: float, table: pd.DataFrame, num_layers: int) -> pd.DataFrame:
    """`table` of attention in a layer with what decodes add to the other operators of a step as part of their times.

    Beyond the most that was measured it stays, as what could be driven out of the caches then is.
    """
    added_us = _growing(samples, ADDED_BY_ATTENTION, math.prod)
    if table.empty or added_us.empty:
        return table
    more_us = np.interp(table["num_decodes"] * table["decode_context"], [0, *added_us.index], [0.0, *added_us])
    return table.assign(time_us=table["time_us"] + pace * more_us / num_layers)


def _scattered_table(samples: Samples, pace: float, meta: ProfileMeta) -> pd.DataFrame:
    def num_scattered(sizes: tuple[int, ...]) -> int:
        """As a step plan counts them: of all blocks but the first of each sequence."""
        batch, context = sizes
        block_size = meta.block_size or 1
        return batch * block_size * ((context - 1) // block_size)

    added_us = _growing(samples, ADDED_BY_SCATTERING, num_scattered)
    return pd.DataFrame({"num_tokens": added_us.index, "time_us": pace * added_us.to_numpy() / meta.num_layers})


def _growing(samples: Samples, added: str, num_tokens: Callable[[tuple[int, ...]], int]) -> pd.Series[float]:
    """What is `added` to steps of decodes, us, over what `num_tokens` makes of their batch and context, if that is not
    0. That it falls anywhere, or depends on anything else, is taken for noise."""
    points = [point for point in samples.points("beside") if num_tokens(point.sizes)]
    if not points:
        return pd.Series(dtype=np.float64)
    by_tokens = pd.Series([samples.median(point, added) for point in points])
    by_tokens = by_tokens.groupby([num_tokens(point.sizes) for point in points]).mean()
    return pd.Series(np.maximum(isotonic_regression(by_tokens).x, 0.0), by_tokens.index)


def _plain_table(samples: Samples, statistic: Statistic, family: str, axis: str) -> pd.DataFrame | None:
    rows = [
        {axis: point.sizes[0], **_times(samples, statistic, point, operator)}
        for point in samples.points(family)
        for operator in samples.operators(point)
    ]
    return pd.DataFrame(rows) if rows else None


def _step_table(
    samples: Samples, statistic: Statistic, cost: ProfiledCost, split: Split, on_a_line: bool
) -> pd.DataFrame:
    """What steps took beyond their operators, by kind, over their tokens.

    On a line the difference of two long times, which is mostly noise, has few parameters, to which a step counts the
    less the longer it takes. A GPU is given kernels ahead of time: what a step takes beyond them is the time of giving
    them, until they take longer than that, so each number of tokens has its own. Where the operators were timed beside
    the steps their median is not that of other moments, so that a slow phase of a shared machine hits both sides of the
    difference; the fastest of few is not the fastest there is.
    """
    beyond = {
        "decode": [_beyond_decode(samples, statistic, cost, point) for point in samples.points("step_decode")],
        **{
            kind: [_beyond_prompts(samples, statistic, cost, split, point) for point in samples.points(f"step_{kind}")]
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
        spread_us = np.average(spread, weights=1 / time**2)
        rows += [
            {"kind": kind, "num_tokens": int(size), "time_us": time_us, "spread_us": spread_us}
            for size, time_us in zip(sizes, times, strict=True)
        ]
    return pd.DataFrame(rows)


def _beyond_decode(
    samples: Samples, statistic: Statistic, cost: ProfiledCost, point: Point
) -> tuple[float, float, float, float]:
    """Number of tokens, time, time beyond the operators and spread of a step of decodes."""
    batch, context = point.sizes
    time_us = statistic(samples.times(point, str(batch)))
    if statistic is np.median and ALL_OPERATORS in samples.operators(point):
        operators_us = samples.median(point, ALL_OPERATORS)
    else:
        operators_us = cost.step_ns(_plan([], batch, context + MIDDLE_STEP)) * 1e-3
    return batch, time_us, time_us - operators_us, samples.spread(point, str(batch))


def _beyond_prompts(
    samples: Samples, statistic: Statistic, cost: ProfiledCost, split: Split, point: Point
) -> tuple[float, float, float, float]:
    """The same of a step with prompts. As these were timed at many numbers of tokens, about those of the point, it is
    by how many times its price that each took."""
    *decodes, num_prompt_tokens = point.sizes
    batch, context = decodes or (0, 0)

    def priced_us(count: int) -> float:
        return cost.step_ns(_plan(split(count), batch, context + 3)) * 1e-3

    prices = {count: priced_us(int(count)) for count in samples.operators(point)}
    factors = [time / price for count, price in prices.items() for time in samples.times(point, count)]
    factor, operators_us = statistic(factors), priced_us(num_prompt_tokens)
    rest_us, spread_us = (factor - 1) * operators_us, spread_of(factors) * operators_us
    return batch + num_prompt_tokens, factor * operators_us, rest_us, spread_us


def _plan(prompts: list[int], batch: int, context: int) -> StepPlan:
    """A step of whole prompts and of decodes of equal contexts."""
    return plan_to_price([(0, length, True) for length in prompts], batch, batch * context, batch * context**2)


def _times(samples: Samples, statistic: Statistic, point: Point, operator: str) -> dict[str, float]:
    return {
        "time_us": float(statistic(samples.times(point, operator))), "spread_us": samples.spread(point, operator)
    }  # fmt: skip
