"""Blocks that sequences hold for states beside those of their tokens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.sequence import Request
from tests.engine.core.builders import make, run

_OPTIONS = st.fixed_dictionaries(
    {
        "policy": st.sampled_from(["admission_order", "mixed", "prefill_first", "static"]),
        "preemption": st.sampled_from(["recompute", "partial"]),
        "async_scheduling": st.booleans(),
        "allocation": st.sampled_from(["prompt", "chunk"]),
    }
)
_REQUESTS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20), st.integers(1, 3)), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(options=_OPTIONS, requests=_REQUESTS, state_blocks=st.integers(1, 6))
def test_all_end_states_are_given_back_and_runs_of_steps_decide_as_single_steps_do(
    options: dict[str, Any], requests: list[tuple[int, int, int]], state_blocks: int
) -> None:
    steps = []
    for groups in (False, True):
        limits = {"num_blocks": 40 + 3 * state_blocks, "max_num_batched_tokens": 16, "state_blocks": state_blocks}
        scheduler = make(**(options | limits))
        for number, (prompt, output, samples) in enumerate(requests):
            scheduler.add(Request(number, prompt, output, num_sequences=samples))
        steps.append(sum(plan.num_steps for plan in run(scheduler, groups=groups)))
        assert not scheduler.unfinished and scheduler.blocks.num_used_blocks() == 0
    assert steps[0] == steps[1]


@pytest.mark.parametrize(("state_blocks", "most"), [(0, 8), (1, 6), (4, 3), (18, 1)])
def test_a_state_takes_the_place_of_tokens(state_blocks: int, most: int) -> None:
    """20 blocks; each request holds two for its tokens in the end, and one at first."""
    scheduler = make(num_blocks=20, state_blocks=state_blocks, max_num_seqs=8)
    for number in range(8):
        scheduler.add(Request(number, 4, 4))
    assert max(len(plan.decodes) for plan in run(scheduler)) == most
    assert scheduler.max_model_len == (20 - state_blocks) * 4
