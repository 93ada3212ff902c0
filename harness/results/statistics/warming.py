"""Prefix caches that still fill in a run: its first requests meet colder caches than those of a long run.

What is looked at is the share of each prompt that was found cached, in order of arrival.

    |  first quarter  |        first half of the rest       |       second half of the rest        |
    left out, if the caches became warmer during the run     still warmer here: they were filling to the end
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from harness.results.columns import floats, ratio
from harness.results.tables import Floats, Rows

# Of the prompt tokens that the first half of a stretch had to compute: a smaller gain of the second half is none.
_MATTERS = 0.1
_SURE = 2.0  # standard errors of the gain


@dataclass(frozen=True)
class Warming:
    """num_cold: first requests, in order of arrival, that met colder caches than those after them.
    is_over: whether it is sure that the caches had stopped becoming warmer before the run ended.
    factor: prompt tokens to compute of the requests after the cold ones, as a share of those of all, both for each
        token of a prompt.
    """

    num_cold: int = 0
    is_over: bool = True
    factor: float = 1.0


def warming_of(requests: Rows) -> Warming:
    """How the prefix caches filled while these requests came; no warming where nothing is known of hits."""
    came = np.flatnonzero(floats(requests, "first_scheduled_time") >= 0)
    num_cold = len(came) // 4
    if num_cold < 2 or not floats(requests, "num_cached_tokens")[came].sum() > 0:
        return Warming()
    came = came[np.argsort(floats(requests, "arrival_time")[came], kind="stable")]
    prompt, cached = floats(requests, "num_prompt_tokens")[came], floats(requests, "num_cached_tokens")[came]
    gain, error = _gain(prompt, cached)
    if not gain >= max(_MATTERS, _SURE * error):
        return Warming()
    gain, error = _gain(prompt[num_cold:], cached[num_cold:])
    missing = ratio(*_tokens(prompt[num_cold:], cached[num_cold:])) / ratio(*_tokens(prompt, cached))
    return Warming(num_cold, gain + error < _MATTERS, missing)


def _tokens(prompt: Floats, cached: Floats) -> tuple[float, float]:
    return float((prompt - cached).sum()), float(prompt.sum())


def _gain(prompt: Floats, cached: Floats) -> tuple[float, float]:
    """By how much less of its prompts the second half has to compute than the first, as a share of what that has to,
    and the standard error of this."""
    half = len(prompt) // 2
    parts = slice(half), slice(half, None)
    before, after = (ratio(*_tokens(prompt[part], cached[part])) for part in parts)
    shares = cached / np.maximum(prompt, 1)
    error = math.sqrt(sum(float(shares[part].var(ddof=1)) / len(shares[part]) for part in parts))
    return (before - after) / before, error / before
