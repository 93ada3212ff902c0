"""What uneven contexts add to decode attention: the measured times at measured points."""

from __future__ import annotations

import pytest

from tests.simulator.builders import LAYERS, cost, deviations, profile, with_tables, work

MEASURED = with_tables(profile(), deviations=deviations())


def extra_us(contexts: list[int]) -> float:
    """What a decode step takes beyond one of even contexts of that mean, one layer."""
    uneven, even = cost(MEASURED), cost()
    step = work([], contexts)
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
    uneven, even = cost(MEASURED), cost()
    mixed = work([(0, 16, True)], [50, 150])
    assert (uneven.step_ns(mixed) - even.step_ns(mixed)) / (LAYERS * 1e3) == pytest.approx(14.0, abs=0.01)
