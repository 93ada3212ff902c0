"""What all cost models promise: a run of decode steps takes, bit for bit, what its steps take one by one."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.work import StepWork
from simulator.costs.cost import CostModel
from simulator.costs.drafting import DraftingCost
from simulator.costs.linear import LinearCost
from simulator.costs.roofline import RooflineCost
from simulator.nanoseconds import nearest_ns
from tests.selection import examples
from tests.simulator.builders import H100, QWEN, WINDOWED, cost, deviations, profile, resized, with_tables, work

BUCKETS = (1, 2, 4, 8, 16, 32, 64)
GAINS = pd.DataFrame({"prefill_tokens": 0, "num_decodes": [1, 64], "gain": [0.1, 0.7]})
COPIES = pd.DataFrame({"num_blocks": [1, 2], "time_us": [4.0, 6.0]})
MODELS = (
    "roofline",
    "windows",
    "all windows",
    "linear",
    "linear of nothing",
    "profiled",
    "padded",
    "gains",
    "deviations",
    "drafting",
)


@cache
def model(name: str) -> CostModel:
    constants = {"step_s": 0.02, "context_token_s": 1e-6, "prefill_step_s": 0.03, "prompt_token_s": 1e-4}
    match name:
        case "roofline":
            return RooflineCost(QWEN, H100)
        case "windows":
            return RooflineCost(WINDOWED, H100)
        case "all windows":
            return RooflineCost(resized(QWEN, sliding_window=1000, num_sliding_layers=QWEN.num_layers), H100)
        case "linear":
            return LinearCost(constants)
        case "linear of nothing":
            return LinearCost(dict.fromkeys(constants, 0.0))
        case "profiled":
            return cost(with_tables(profile(), copies=COPIES))
        case "padded":
            return cost(profile(token_buckets=BUCKETS, padded_heads=True, mean_over_median=1.07))
        case "gains":
            return cost(with_tables(profile(token_buckets=BUCKETS, padded_steps="all"), uneven=GAINS))
        case "drafting":
            return DraftingCost(model("padded"), 3, model("roofline"), 500)
    return cost(with_tables(profile(mean_over_median=1.07), deviations=deviations()))


def ragged(contexts: list[int], num_steps: int, seed: int) -> StepWork:
    """Decodes that bring 1 to 4 tokens in a step."""
    grown = np.random.default_rng(seed).integers(1, 5, (num_steps, len(contexts))).cumsum(axis=0)
    later = np.vstack([contexts, np.array(contexts) + grown])[:num_steps]
    return work(
        [],
        contexts,
        tokens_per_decode=4,
        later_contexts=later.sum(axis=1),
        later_squared_contexts=(later**2).sum(axis=1),
    )


@pytest.mark.parametrize("name", MODELS)
@given(
    contexts=st.lists(st.integers(1, 6000), min_size=1, max_size=80),
    num_steps=st.integers(1, 400),
    tokens_per_decode=st.sampled_from([1, 1, 3]),
    num_copied_blocks=st.sampled_from([0, 3]),
)
@examples(10)
def test_a_run_of_decode_steps_takes_what_its_steps_take(
    name: str, contexts: list[int], num_steps: int, tokens_per_decode: int, num_copied_blocks: int
) -> None:
    first = work([], contexts, tokens_per_decode=tokens_per_decode, num_copied_blocks=num_copied_blocks)
    times = np.asarray(model(name).decode_ns(first, num_steps))
    assert times.dtype == np.int64 and len(times) == num_steps and times.min() >= 1
    assert times[0] == model(name).step_ns(first)
    for ahead in {num_steps // 2, num_steps - 1} - {0}:
        later = work([], [context + ahead for context in contexts], tokens_per_decode=tokens_per_decode)
        assert times[ahead] == model(name).step_ns(later) == model(name).step_ns(first.after(ahead))


@pytest.mark.parametrize("name", MODELS)
@given(
    contexts=st.lists(st.integers(1, 6000), min_size=1, max_size=40),
    num_steps=st.integers(1, 60),
    seed=st.integers(0, 1000),
)
@examples(10)
def test_a_run_of_steps_that_bring_varying_numbers_of_tokens_takes_what_its_steps_take(
    name: str, contexts: list[int], num_steps: int, seed: int
) -> None:
    first = ragged(contexts, num_steps, seed)
    times = np.asarray(model(name).decode_ns(first, num_steps))
    assert times.tolist() == [model(name).step_ns(first.after(ahead)) for ahead in range(num_steps)]


@given(st.one_of(st.floats(-(2.0**50), 2.0**50), st.integers(-(2**50), 2**50).map(lambda twice: twice / 2)))
def test_the_nearest_whole_time_is_what_rounding_says(time: float) -> None:
    assert nearest_ns(time) == round(time)
