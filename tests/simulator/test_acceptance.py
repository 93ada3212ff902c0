"""Speculative decoding in simulation: sequences that gain a drawn number of tokens per step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.core.decodes.ragged import RaggedDecodes
from engine.core.scheduler_making import make_scheduler
from engine.core.scheduler_options import SchedulerOptions
from engine.core.sequence import Request, Sequence
from engine.core.work import ChunkWork, StepWork
from harness.workload.arrivals import OpenLoop
from simulator.acceptance import Speculation, rates_of_length
from simulator.costs.cost import CostModel
from simulator.costs.drafting import DraftingCost
from tests.selection import examples
from tests.simulator.builders import cost
from tests.simulator.replicas import ROOFLINE, FlatCost, assert_same, simulate, simulate_case
from tests.simulator.workloads import OPTIONS, Case, cases, simple_trace

NUM_DRAFTS = 3
PRICES = st.sampled_from([ROOFLINE, cost()])


# Rows of padding draft no tokens.
UNPADDED = OPTIONS.map(
    lambda options: replace(options, options={"padded": False} if options.policy == "static" else {})
)


@examples(10)
@given(cases(options=UNPADDED, num_drafts=st.sampled_from([1, 3]), num_replicas=st.sampled_from([1, 1, 2])), PRICES)
def test_compressed_equals_stepped_with_drafts(case: Case, price: CostModel) -> None:
    runs = [simulate_case(case, price, compress=compress) for compress in (False, True)]
    for stepped, compressed in zip(*runs, strict=True):
        assert_same(stepped, compressed)
    for run in runs[0]:
        decoded = run.steps["num_decode_seqs"] + run.steps["num_accepted_tokens"]
        assert (run.steps["num_accepted_tokens"] <= run.steps["num_drafted_tokens"]).all()
        assert case.num_drafts is not None
        assert (run.steps["num_drafted_tokens"] <= case.num_drafts * run.steps["num_decode_seqs"]).all()
        if not run.steps["num_preempted"].any():
            served = run.requests[run.requests["status"] == "finished"]  # the others are served elsewhere
            assert decoded.sum() == (served["num_output_tokens"] - 1).sum()
            assert run.gaps.count == run.steps["num_decode_seqs"].sum(), "a step brings one gap, however many tokens"
    tokens = sum(run.requests["num_output_tokens"].sum() for run in runs[0])
    assert tokens == runs[0][0].requests["num_requested_tokens"].sum()


ENDS_AS_A_BLOCK_FILLS = Case(
    options=SchedulerOptions(policy="admission_order", watermark=0.02, allocation="prompt", victim="spare_last"),
    block_size=1, extra_blocks=1, max_num_seqs=3, max_num_batched_tokens=16, arrivals="open", contents="sessions",
    max_lookahead_steps=1, seed=153,
)  # fmt: skip


@examples(8)
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
        make_decodes=lambda size, longest: RaggedDecodes(size, longest, NUM_DRAFTS, trajectory),
    )
    (run,) = simulate(simple_trace([10], [num_output_tokens]), OpenLoop(np.array([0])), [scheduler], FlatCost(1000))
    assert run.requests["num_output_tokens"].tolist() == [num_output_tokens]
    return run.requests["finish_time"].item(), len(run.steps)


@examples(8)
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


def test_accepted_drafts_are_drawn_at_their_rates() -> None:
    rates = (0.9, 0.5, 0.1)
    speculation = Speculation(rates, seed=3)
    (sequence,) = Request(7, 10, 20_000).sequences
    accepted = np.diff(speculation.trajectory(sequence)) - 1
    for position, rate in enumerate(rates):
        assert (accepted > position).mean() == pytest.approx(rate, abs=0.015)
    assert np.array_equal(speculation.trajectory(sequence), speculation.trajectory(sequence))
    sequence.add_tokens(1)
    assert not np.array_equal(accepted[:100], np.diff(speculation.trajectory(sequence))[:100] - 1)


@pytest.mark.parametrize(
    ("length", "rates"), [(2.6, (1, 0.6, 0)), (1.0, (0, 0, 0)), (4.0, (1, 1, 1)), (2.0, (1, 0, 0))]
)
def test_a_mean_length_is_drawn_with_little_variance(length: float, rates: tuple[float, ...]) -> None:
    """The examples are those of vLLM's tests of `synthetic_acceptance_length`."""
    assert rates_of_length(length, 3) == pytest.approx(rates)
    assert 1 + sum(rates_of_length(length, 3)) == pytest.approx(length)


def test_a_drafter_runs_after_the_model() -> None:
    """Its first pass computes what the model computes, the others one token of each sequence that decodes next."""
    price = DraftingCost(FlatCost(1000), 3, ROOFLINE, 7)
    decodes = StepWork((), 2, 300, 50_000, tokens_per_decode=4)
    passes = [decodes, StepWork((), 2, 302, 50_602), StepWork((), 2, 304, 51_208)]
    assert price.step_ns(decodes) == 1000 + 3 * 7 + sum(map(ROOFLINE.step_ns, passes))
    cut = StepWork([ChunkWork(0, 50, False)], 0, 0, 0)
    assert price.step_ns(cut) == 1000 + ROOFLINE.step_ns(cut), "nobody decodes next"
    ended = StepWork([ChunkWork(20, 30, True)], 0, 0, 0)
    passes = [ended, StepWork((), 1, 51, 51**2), StepWork((), 1, 52, 52**2)]
    assert price.step_ns(ended) == 1000 + 3 * 7 + sum(map(ROOFLINE.step_ns, passes))
    assert DraftingCost(FlatCost(1000), 3, None, 7).step_ns(decodes) == 1021
