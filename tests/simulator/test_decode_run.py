"""A run of decode steps is the same as a list and as an array."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simulator.decode_run import Durations, Run
from tests.selection import examples

DURATIONS = st.lists(st.integers(1, 20), min_size=1, max_size=12)


def told(run: Run, time: int) -> tuple[object, ...]:
    return (
        [*run.durations], [*run.ends], run.num_steps, run.end, run.first_ns, run.last_ns, run.num_before(time),
        run.num_up_to(time),
    )  # fmt: skip


@examples(60)
@given(DURATIONS, DURATIONS, st.integers(0, 250), st.booleans(), st.booleans(), st.data())
def test_lists_and_arrays_tell_the_same(
    first: list[int], later: list[int], time: int, is_array: bool, is_later_array: bool, data: st.DataObject
) -> None:
    both = first + later
    ends = [*accumulate(both)]
    before, up_to = (sum(map(is_over, ends)) for is_over in (time.__gt__, time.__ge__))
    begun: Durations = np.array(first) if is_array else first
    run = Run(begun).followed_by(np.array(later) if is_later_array else later)
    expected = both, ends, len(both), ends[-1], both[0], both[-1], before, up_to
    assert told(run, time) == told(Run(np.array(both)), time) == expected
    num_steps = data.draw(st.integers(1, len(both)))
    assert told(run.first(num_steps), time) == told(Run(both[:num_steps]), time)
