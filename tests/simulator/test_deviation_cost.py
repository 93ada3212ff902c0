"""What uneven contexts add to decode attention: the measured times at measured points, bit-equal over a run."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulator.shapes import MODEL, attention_us, plan, profile
from tests.simulator.test_profiled import cost, with_tables

LAYERS = MODEL.num_layers
EXTRA_US = {50: 7.0, 100: 9.0}  # of one layer, by the deviation in percent; twice that from a mean of 400 on
TABLE = pd.DataFrame(
    [
        {
            "num_decodes": n, "decode_context": mean, "deviation_pct": percent,
            "time_us": attention_us(0, 0, n, mean) + n * EXTRA_US[percent] * (2 if mean == 400 else 1),
        }
        for n in (2, 4)
        for mean in (100, 400)
        for percent in EXTRA_US
    ]
)  # fmt: skip


def extra_us(contexts: list[int]) -> float:
    """What a decode step takes beyond one of even contexts of that mean, one layer."""
    uneven, even = cost(with_tables(profile(), deviations=TABLE)), cost()
    step = plan([], contexts)
    return (uneven.step_ns(step) - even.step_ns(step)) / (LAYERS * 1e3)


@pytest.mark.parametrize(
    ("contexts", "expected_us"),
    [
        ([50, 150], 2 * 7.0),  # a mean of 100 and a deviation of 50 %
        ([50, 50, 150, 150], 4 * 7.0),
        ([75, 125], 2 * 3.5),  # halfway to even contexts
        ([125, 375], 2 * 10.5),  # a mean of 250
        ([50, 100, 150], 3 * 7.0 * (2 / 3) ** 0.5 / 0.5 / 2 * 1.0),
        ([1000, 3000], 2 * 14.0),  # the last value is kept beyond the table
        ([200, 200], 0.0),
        ([200], 0.0),
    ],
)
def test_measured_deviations_add_what_was_measured(contexts: list[int], expected_us: float) -> None:
    assert extra_us(contexts) == pytest.approx(expected_us, abs=0.01)


def test_decodes_beside_a_prompt_are_as_uneven() -> None:
    uneven, even = cost(with_tables(profile(), deviations=TABLE)), cost()
    mixed = plan([(0, 16, True)], [50, 150])
    assert (uneven.step_ns(mixed) - even.step_ns(mixed)) / (LAYERS * 1e3) == pytest.approx(14.0, abs=0.01)


@given(st.lists(st.integers(1, 6000), min_size=1, max_size=20), st.integers(1, 400))
@settings(max_examples=60, deadline=None)
def test_many_steps_at_once_are_the_single_steps_bit_for_bit(contexts: list[int], num_steps: int) -> None:
    model = cost(with_tables(profile(), deviations=TABLE))
    times = model.decode_ns(plan([], contexts), num_steps)
    for ahead in {0, num_steps // 2, num_steps - 1}:
        assert times[ahead] == model.step_ns(plan([], [context + ahead for context in contexts]))
