"""Where a profiled cost model says that it went beyond what was measured, and that it stays plausible there."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.work import StepWork
from simulator.costs.profiled import ProfiledCost
from simulator.profile.profile import Profile
from tests.simulator.builders import MODEL, cost, profile, with_tables, work

UNEVEN = pd.DataFrame({"prefill_tokens": [0, 16], "num_decodes": [4, 4], "gain": [1.0, 1.0]})
MEASURED = with_tables(profile(), uneven=UNEVEN)
RANKS = Profile(replace(profile().meta, tensor_parallel_size=2), profile().tables)


def outside(model: ProfiledCost) -> dict[str, tuple[int, float]]:
    return {name: (axis.plans, axis.factor) for name, axis in model.outside().items()}


def test_it_says_where_it_went_beyond_the_profile() -> None:
    model = cost()
    model.step_ns(work([], [256] * 64))
    assert model.outside() == {}
    model.step_ns(work([], [8192] * 16))
    model.step_ns(work([], [16] * 128))
    model.step_ns(work([(4096, 1024, True)], []))
    assert model.num_plans == 4
    assert outside(model) == {
        "decode context": (1, 2), "decode batch": (1, 2), "prefill chunk": (1, 2), "prefill context": (1, 2),
        "tokens": (1, 2),
    }  # fmt: skip


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=20), st.integers(1, 300), st.booleans())
def test_a_run_of_steps_reaches_as_far_as_its_steps_one_by_one(
    contexts: list[int], num_steps: int, uneven: bool
) -> None:
    measured = MEASURED if uneven else profile()
    at_once, stepped = cost(measured), cost(measured)
    at_once.step_ns(work([], contexts))
    at_once.decode_ns(work([], contexts), num_steps)
    for ahead in range(num_steps):
        stepped.step_ns(work([], [context + ahead for context in contexts]))
    found, expected = outside(at_once), outside(stepped)
    assert {name: factor for name, (_, factor) in found.items()} == pytest.approx(
        {name: factor for name, (_, factor) in expected.items()}
    )
    assert {plans for plans, _ in found.values()} <= {1}


def test_decodes_beside_prompts_count_as_far_as_they_are_priced() -> None:
    contexts = [2000, 2000, 2000, 8000]  # their mean is inside, mean + deviation is not
    step = work([(0, 16, True)], contexts)
    model, even = cost(MEASURED), cost()
    for each in (model, even):
        each.step_ns(step)
    assert outside(model) == {"decode context": (1, pytest.approx((3500 + 27**0.5 * 500) / 4096))}
    assert outside(even) == {}


def test_between_two_rows_the_one_that_ends_sooner_counts() -> None:
    table = profile().tables["attention"]
    gone = (table["prefill_tokens"] == 0) & (table["num_decodes"] == 16) & (table["decode_context"] == 4096)
    model = cost(with_tables(profile(), attention=table[~gone]))
    for batch, context in ((4, 4096), (8, 256), (64, 4096)):
        model.step_ns(work([], [context] * batch))
    assert outside(model) == {}
    model.step_ns(work([], [1024] * 8))
    assert outside(model) == {"decode context": (1, 4)}


STEPS = pd.DataFrame({"kind": ["decode", "mixed", "mixed"], "num_tokens": [1, 16, 64], "time_us": [9.0, 9.0, 50.0]})
COPIES = pd.DataFrame({"num_blocks": [1, 2], "time_us": [4.0, 6.0]})
REDUCES = pd.DataFrame({"num_bytes": [1024, 32 * MODEL.hidden_size * 2], "time_us": [5.0, 9.0]})  # of up to 32 tokens
DECODES = work([], [256] * 64)


def copying(num_blocks: int) -> StepWork:
    step = work([], [256] * 64)
    step.num_copied_blocks = num_blocks
    return step


@pytest.mark.parametrize(
    ("measured", "step", "expected"),
    [
        (with_tables(profile(), steps=STEPS), DECODES, {}),  # a single point is for all steps
        (with_tables(profile(), steps=STEPS), work([(0, 56, True)], [16] * 16), {}),  # whole steps are about as long
        (with_tables(profile(), steps=STEPS), work([(0, 120, True)], [16] * 8), {"rest of a step": (1, 2)}),
        (with_tables(profile(), copies=COPIES), copying(2), {}),
        (with_tables(profile(), copies=COPIES), copying(6), {"copies": (1, 3)}),
        (with_tables(RANKS, all_reduce=REDUCES), work([], [256] * 32), {}),
        (with_tables(RANKS, all_reduce=REDUCES), DECODES, {"all-reduce": (1, 2)}),
        # by constants, which are no measurement to go beyond
        (RANKS, work([(0, 1 << 18, True)], []), {"prefill chunk": (1, 512), "tokens": (1, 512)}),
    ],
)
def test_whatever_is_not_attention_has_its_ends_too(
    measured: Profile, step: StepWork, expected: dict[str, tuple[int, float]]
) -> None:
    model = cost(measured, measured.meta.tensor_parallel_size)
    model.step_ns(step)
    assert outside(model) == expected


@given(st.lists(st.floats(0, 1e3), min_size=3, max_size=3), st.booleans())
def test_all_reduces_beyond_their_points_never_get_shorter(times: list[float], measured: bool) -> None:
    """Whatever a fit makes of the constants, and whatever noise is in a table."""
    table = pd.DataFrame({"num_bytes": [1 << 10, 1 << 20, 1 << 24], "time_us": [time + 1e-3 for time in times]})
    names = ("all_reduce_0mib_us", "all_reduce_1mib_us", "all_reduce_16mib_us")
    if measured:
        model = cost(with_tables(RANKS, all_reduce=table), 2)
    else:
        model = cost(RANKS, 2, None, **dict(zip(names, times, strict=True)))
    alone = cost()
    found = [
        model.step_ns(step) - alone.step_ns(step)
        for step in (work([(0, num_tokens, True)], []) for num_tokens in (1 << 17, 1 << 18, 1 << 20))
    ]
    assert found[0] >= 0 and all(more >= less - 1 for less, more in zip(found, found[1:], strict=False))
