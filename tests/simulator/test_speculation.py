"""Speculative decoding in simulation: sequences that gain a drawn number of tokens per step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.core.decodes.ragged import RaggedDecodes
from engine.core.scheduler_options import SchedulerOptions, make_scheduler
from engine.core.sequence import Sequence
from harness.workload.arrivals import OpenLoop
from simulator.costs.cost import CostModel
from tests.simulator.builders import cost
from tests.simulator.workloads import (
    ROOFLINE,
    Case,
    FlatCost,
    assert_same,
    cases,
    simple_trace,
    simulate,
    simulate_case,
)

NUM_DRAFTS = 3
PRICES = st.sampled_from([ROOFLINE, cost()])


@settings(max_examples=20, deadline=None)
@given(cases(num_drafts=st.sampled_from([1, 3]), num_replicas=st.sampled_from([1, 1, 2])), PRICES)
def test_compressed_equals_stepped_with_drafts(case: Case, price: CostModel) -> None:
    runs = [simulate_case(case, price, compress=compress) for compress in (False, True)]
    for stepped, compressed in zip(*runs, strict=True):
        # The recorder counts a token per decode and step inside a plan.
        assert_same(stepped, compressed, but=("num_context_tokens", "num_kv_tokens"))
    tokens = sum(run.requests["num_output_tokens"].sum() for run in runs[0])
    assert tokens == runs[0][0].requests["num_requested_tokens"].sum()


ENDS_AS_A_BLOCK_FILLS = Case(
    options=SchedulerOptions(policy="admission_order", watermark=0.02, allocation="prompt", victim="spare_last"),
    block_size=1, extra_blocks=1, max_num_seqs=3, max_num_batched_tokens=16, arrivals="open", contents="sessions",
    max_lookahead_steps=1, seed=153,
)  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(cases(), PRICES)
@example(ENDS_AS_A_BLOCK_FILLS, ROOFLINE)  # its last block can be found while the last token is computed
def test_without_drafts_all_is_as_with_uniform_decodes(case: Case, price: CostModel) -> None:
    (uniform,), (ragged,) = (simulate_case(replace(case, num_drafts=drafts), price) for drafts in (None, 0))
    assert_same(uniform, ragged)


def lone_request(gains: NDArray[np.int64], num_output_tokens: int) -> tuple[float, int]:
    """When a request ends that gains so many tokens with each step, and how many steps there are."""

    def trajectory(sequence: Sequence) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(gains)])

    scheduler = make_scheduler(
        SchedulerOptions(),
        num_blocks=100,
        block_size=4,
        max_num_seqs=4,
        max_num_batched_tokens=100,
        make_decodes=lambda size: RaggedDecodes(size, NUM_DRAFTS, trajectory),
    )
    (run,) = simulate(simple_trace([10], [num_output_tokens]), OpenLoop(np.array([0])), [scheduler], FlatCost(1000))
    assert run.requests["num_output_tokens"].tolist() == [num_output_tokens]
    return run.requests["finish_time"].item(), len(run.steps)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 60), st.data())
def test_more_accepted_drafts_never_make_a_lone_request_slower(num_output_tokens: int, data: st.DataObject) -> None:
    n = num_output_tokens
    accepted = np.array(data.draw(st.lists(st.integers(0, NUM_DRAFTS), min_size=n, max_size=n)))
    more = np.array(data.draw(st.lists(st.integers(0, NUM_DRAFTS), min_size=n, max_size=n)))
    few, many = (lone_request(1 + np.minimum(each, NUM_DRAFTS), n) for each in (accepted, accepted + more))
    # A step for the prompt and its token, then as many as it takes to gain the rest.
    num_decode_steps = int(np.searchsorted(np.cumsum(1 + accepted), n - 1)) + 1 if n > 1 else 0
    assert few[1] == 1 + num_decode_steps
    assert many <= few


def test_all_drafts_accepted_or_none() -> None:
    assert lone_request(np.full(50, 1), 41) == (pytest.approx(41e-6), 41)
    assert lone_request(np.full(50, 4), 41) == (pytest.approx(11e-6), 11)
