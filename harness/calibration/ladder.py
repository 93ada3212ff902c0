"""The loads that task=observe drives a server with, in slices that take turns.

A server on a shared machine may be half as fast a minute later. Loads one after the other would then be measured on
different machines, and constants that were fitted to the first fail on the last. So each load comes in slices over the
whole time: a slice of a fitted load and one of the held-out load make a pair, in a random order, and a pair of each
fitted load makes a block, in a random order.

    block 1                                  block 2
    0.5 HELD  HELD 0.2  0.8 HELD             HELD 0.8  0.5 HELD  0.2 HELD   ...

Requests arrive without a pause from one slice to the next: a slice begins with what the one before left in the server.
The simulation is driven with the same arrivals, so it begins with the same.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pandas as pd

from harness.config.schema.tasks.validation import ObserveConfig
from harness.errors import ConfigError
from harness.results.tables import Floats

PROBE, LADDER = 0.2, 0.65  # of the time; the rest is for the last answers
MOST, _FEWEST = 2000, 20  # requests of the fitted loads, and of the held-out one
_ANSWERS = 4  # times that an answer takes, in a slice: most of it has the slice's own load
_BLOCKS, _SLICE = 30, 5  # most blocks, and fewest requests of a slice


class Ladder(NamedTuple):
    """What is sent when.

    Attributes:
        times: arrival times in s, ascending, from 0.
        slices: a row per slice in order: load (requests/s), held_out, num_requests.
    """

    times: Floats
    slices: pd.DataFrame


def make_ladder(rate: float, answer_s: float, settings: ObserveConfig, most: int, rng: np.random.Generator) -> Ladder:
    """Poisson processes in slices; half of the requests are of the held-out load, and fitted loads last equally long.

    The server can serve `rate` requests/s, and an answer takes `answer_s` then; there are `most` requests for either
    half.

    Raises:
        ConfigError: there is too little time, or there are too few requests.
    """
    time_s, loads = settings.time_s, settings.loads
    if not rate > 0:
        raise ConfigError(
            f"task=observe: the server answered no request within {PROBE * time_s:,.3g} s: give "
            f"observe.time_s={math.ceil(10 * time_s)}"
        )
    request_s = (len(loads) / sum(loads) + 1 / settings.held_out_load) / LADDER / rate  # of one in each half
    half = min(int(time_s / request_s), MOST, most)
    if half < _FEWEST:
        needed = "a longer trace" if most < _FEWEST else f"observe.time_s={math.ceil(_FEWEST * request_s)}"
        raise ConfigError(
            f"task=observe: {2 * half} requests at {rate:.3g} requests/s, and {2 * _FEWEST} are needed: give {needed}"
        )
    slices = _slices(half, half * request_s * LADDER, answer_s, settings, rng)
    slices["load"] *= rate
    gaps = rng.standard_exponential(2 * half) / np.repeat(slices["load"].to_numpy(), slices["num_requests"])
    return Ladder(np.cumsum(gaps) - gaps[0], slices)


def _slices(
    half: int, span_s: float, answer_s: float, settings: ObserveConfig, rng: np.random.Generator
) -> pd.DataFrame:
    """The slices of a ladder of 2 * `half` requests that takes `span_s`, with loads as shares."""
    loads = settings.loads
    counts = [round(half * share / sum(loads)) for share in loads[:-1]]
    counts.append(half - sum(counts))
    in_time = span_s / (2 * len(loads) * _ANSWERS * answer_s)
    blocks = int(np.clip(min(in_time, min(counts) / _SLICE), 1, _BLOCKS))
    parts = {share: _split(count, blocks) for share, count in zip(loads, counts, strict=True)}
    held_out = iter(_split(half, blocks * len(loads)))
    rows = []
    for block in range(blocks):
        for share in rng.permutation(loads).tolist():
            pair = [(share, False, parts[share][block]), (settings.held_out_load, True, next(held_out))]
            rows += pair if rng.random() < 0.5 else pair[::-1]
    return pd.DataFrame(rows, columns=["load", "held_out", "num_requests"])


def _split(count: int, parts: int) -> list[int]:
    """`count` in parts that differ by one at most."""
    return [count // parts + (part < count % parts) for part in range(parts)]
