"""What scattered KV blocks add to a step: the measured times, bit-equal over a run of steps."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulator.shapes import MODEL, plan, profile
from tests.simulator.test_deviation_cost import TABLE as DEVIATIONS
from tests.simulator.test_profiled import cost, with_tables

TABLE = pd.DataFrame({"num_tokens": [500, 1000, 4000], "time_us": [0.0, 40.0, 160.0]})  # of one layer
SCATTERED = with_tables(profile(), scattered=TABLE)
ALL = with_tables(profile(mean_over_median=1.07), scattered=TABLE, deviations=DEVIATIONS)


@pytest.mark.parametrize(
    ("num_tokens", "expected_us"), [(0, 0), (400, 0), (750, 20), (1000, 40), (2500, 100), (4000, 160), (8000, 320)]
)
@pytest.mark.parametrize("chunks", [[], [(0, 16, True)]])
def test_scattered_tokens_add_what_was_measured(
    num_tokens: int, expected_us: float, chunks: list[tuple[int, int, bool]]
) -> None:
    """In steps with a prompt, too; nothing for none, and in proportion beyond the last point."""
    contexts = [2000] * 4
    model = cost(SCATTERED)
    added = model.step_ns(plan(chunks, contexts, num_tokens)) - cost().step_ns(plan(chunks, contexts, num_tokens))
    assert added / (MODEL.num_layers * 1e3) == pytest.approx(expected_us, abs=0.01)
    beyond = {name: axis.factor for name, axis in model.outside().items()}
    assert beyond == ({"scattered tokens": 2.0} if num_tokens == 8000 else {})


def test_a_run_of_steps_that_gets_beyond_the_profile_counts_once() -> None:
    for first, factor in ((3990, 1.25), (4100, 1.2775)):
        model, step = cost(SCATTERED), plan([], [2000] * 10, first)
        model.step_ns(step)
        model.decode_ns(step, 102)
        assert model.outside()["scattered tokens"] == (1, pytest.approx(factor))


@given(st.lists(st.integers(1, 6000), min_size=1, max_size=20), st.floats(0, 1), st.integers(1, 400))
@settings(max_examples=60, deadline=None)
def test_many_steps_at_once_are_the_single_steps_bit_for_bit(contexts: list[int], share: float, num_steps: int) -> None:
    model, num_scattered = cost(ALL), int(share * sum(contexts))
    times = model.decode_ns(plan([], contexts, num_scattered), num_steps)
    for ahead in {0, num_steps // 2, num_steps - 1}:
        later = plan([], [context + ahead for context in contexts], num_scattered + ahead * len(contexts))
        assert times[ahead] == model.step_ns(later)
