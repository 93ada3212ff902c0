"""The real engine and the simulator decide alike: a real run, simulated again with its measured step times."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from engine.core.kv.reserved.reservation import Contiguous  # noqa: E402
from engine.core.planning.policy import BasePolicy  # noqa: E402
from engine.core.policies import POLICIES  # noqa: E402
from engine.core.scheduler_options import OffloadOptions, SchedulerOptions  # noqa: E402
from engine.prompt_lookup import NgramOptions  # noqa: E402
from harness.record.record import Record  # noqa: E402
from tests.harness.engines.builders import (  # noqa: E402
    BLOCK_BYTES,
    OPTIONS,
    assert_equal,
    make_intake,
    make_trace,
    run_paced,
    run_real,
    run_twin,
)
from tests.selection import few  # noqa: E402

TOKENS: dict[int, list[int]] = {}  # of each request, generated in the first run
# With "auto", a block takes as long, out and back, as 3 of its 4 tokens.
PREEMPTIONS = {
    "partial": replace(OPTIONS["vllm"], preemption="partial"),
    "swap": replace(OPTIONS["mixed"], preemption="swap"),
    "auto": replace(OPTIONS["prefill_first"], preemption="auto", recompute_token_us=2e-3 * BLOCK_BYTES / 3),
}


@pytest.mark.parametrize("mode", few(PREEMPTIONS, 2))
def test_the_simulator_repeats_what_preemptions_keep(mode: str) -> None:
    torch.set_num_threads(1)
    trace = make_trace()
    real = run_real(trace, PREEMPTIONS[mode], 40, 8)
    measured = assert_equal(real, run_twin(real, PREEMPTIONS[mode], 40, 8), trace)
    kept = measured.requests["num_partial_preemptions" if mode == "partial" else "num_swaps"].sum()
    assert 0 < kept <= measured.requests["num_preemptions"].sum() == measured.steps["num_preempted"].sum()
    moved = measured.steps[["num_blocks_out", "num_blocks_in"]].sum()
    assert moved.nunique() == 1 and (moved > 0).all() == (mode != "partial")
    assert (measured.steps["transfer_time"] > 0).equals(measured.steps["num_blocks_out"] > 0)


@pytest.mark.parametrize("overlap", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_simulator_repeats_hits_in_host_memory(overlap: bool) -> None:
    torch.set_num_threads(1)
    trace, options, offload = make_trace(), SchedulerOptions(), OffloadOptions(overlap=overlap)
    real = run_real(trace, options, 40, 1, offload)
    measured = assert_equal(real, run_twin(real, options, 40, 1, offload), trace)
    assert measured.steps["num_blocks_in"].sum() > 0
    assert (measured.requests["parked_time"] > 0).any() == overlap


FOR_A_COMMIT = [("mixed", 40, 1), ("priority", 400, 8)]
FOR_A_COMMIT += [(name, 40, 8) for name in ("mixed", "prefill_first", "vllm", "fair")]


def cases() -> Iterator[Any]:
    """A few rules for a commit."""
    for name, (num_blocks, lookahead) in itertools.product(OPTIONS, [(40, 1), (40, 8), (400, 8)]):
        marks = [] if (name, num_blocks, lookahead) in FOR_A_COMMIT else [pytest.mark.slow]
        yield pytest.param(name, num_blocks, lookahead, marks=marks)


@pytest.mark.parametrize(("name", "num_blocks", "lookahead"), [*cases()])
def test_the_simulator_repeats_a_real_run(name: str, num_blocks: int, lookahead: int) -> None:
    torch.set_num_threads(1)
    trace = make_trace()
    real = run_real(trace, OPTIONS[name], num_blocks, lookahead)
    measured = assert_equal(real, run_twin(real, OPTIONS[name], num_blocks, lookahead), trace)
    assert (len(real.durations) == len(measured.steps)) == (lookahead == 1)
    assert measured.steps["num_cached_tokens"].sum() > 0
    preempts = num_blocks == 40 or name == "priority"  # the urgent take seats of others
    may_restrict = POLICIES[OPTIONS[name].policy].admit is not BasePolicy.admit  # so that nobody needs to give way
    assert (measured.steps["num_preempted"].sum() > 0) == preempts or may_restrict
    for row, request in real.requests.items():
        tokens = request.sequences[0].token_ids
        assert tokens and TOKENS.setdefault(row, tokens) == tokens, "what is generated hangs on who decodes beside it"
    assert measured.requests["replay_lag"].between(0, 1).all()


@pytest.mark.parametrize(
    ("lookahead", "rule"),
    [
        (8, Contiguous()),
        pytest.param(1, Contiguous("requested", "best", 60), marks=pytest.mark.long),
        pytest.param(1, Contiguous(), marks=pytest.mark.slow),
        pytest.param(8, Contiguous("requested", "best", 60), marks=pytest.mark.slow),
    ],
)
def test_the_simulator_repeats_the_reservations_of_a_real_run(lookahead: int, rule: Contiguous) -> None:
    torch.set_num_threads(1)
    trace, options = make_trace(), SchedulerOptions(enable_prefix_caching=False)
    real = run_real(trace, options, 130, lookahead, contiguous=rule)
    measured = assert_equal(real, run_twin(real, options, 130, lookahead, contiguous=rule), trace)
    assert not measured.steps["num_preempted"].any() and measured.steps["num_external_slots"].any()


@pytest.mark.parametrize(
    ("policy", "num_blocks"),
    [("mixed", 40), *(pytest.param(*each, marks=pytest.mark.slow) for each in (("mixed", 400), ("prefill_first", 40)))],
)
def test_the_simulator_repeats_a_real_run_of_several_sequences(policy: str, num_blocks: int) -> None:
    torch.set_num_threads(1)
    # What a sample generates has no identity in a simulation, so nothing of it is found in the prefix cache.
    options = SchedulerOptions(policy=policy, enable_prefix_caching=False)
    trace = make_trace()
    trace = replace(trace, rows=trace.rows.assign(n=np.arange(24) % 3 + 1))
    real = run_real(trace, options, num_blocks, lookahead=1)
    measured = assert_equal(real, run_twin(real, options, num_blocks, lookahead=1), trace)
    assert measured.steps["num_saved_blocks"].sum() > 0
    assert (measured.steps["num_preempted"].sum() > 0) == (num_blocks == 40)


@pytest.mark.parametrize("options", few([("mixed", 40), ("prefill_first", 400), ("vllm", 40)]), ids=str)
def test_the_simulator_repeats_a_real_run_with_drafts(options: tuple[str, int]) -> None:
    name, num_blocks = options
    """The simulation is told what each step accepts, the engine learns it when the step has run: they plan alike."""
    torch.set_num_threads(1)
    trace = make_trace()
    real = run_real(trace, OPTIONS[name], num_blocks, 1, speculation=NgramOptions(3, 1, 3))
    simulated = run_twin(real, OPTIONS[name], num_blocks, 1, num_drafts=3)
    measured, twin = (
        assert_equal(real, simulated, trace, "num_accepted_tokens"),
        Record([simulated]).tables(trace, [[]]),
    )
    drafted = [run.steps["num_drafted_tokens"].to_numpy() for run in (measured, twin)]
    assert (drafted[0] <= drafted[1]).all(), "the simulation drafts as many as there may be"
    assert measured.steps["num_accepted_tokens"].sum() > 20


def test_what_a_preempted_sequence_finds_of_its_last_drafts() -> None:
    """No plan has registered the block that they filled: all requests come at once, and one is preempted then."""
    torch.set_num_threads(1)
    trace, options = make_trace(), OPTIONS["mixed"]
    intake, real = make_intake(trace, options, 50, 1, speculation=NgramOptions(3, 1, 3))
    run_paced(intake, real, np.zeros(24, np.int64), [2_000_000] * 400)
    measured = assert_equal(real, run_twin(real, options, 50, 1, num_drafts=3), trace, "num_accepted_tokens")
    assert measured.steps["num_preempted"].sum() > 0
