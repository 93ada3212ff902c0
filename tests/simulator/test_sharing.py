"""Requests of several sequences in a simulation: the tables against a log of every token of every sequence."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from engine.core.plan import StepOutcome, StepPlan
from engine.core.sequence import Request
from harness.workload.arrivals import OpenLoop
from harness.workload.trace import Trace, trace_table
from simulator.costs.shared_reads import SharedReads
from simulator.decode_run import Durations
from tests.simulator.builders import cost
from tests.simulator.replicas import assert_same, expanded_gaps, make, simulate

COST = cost(shared_reads=SharedReads(2, 0.5))


class SequenceLog:
    """Keeps the time of each token of each sequence, and counts blocks, the slow and obvious way."""

    def __init__(self) -> None:
        self.times: dict[Request, list[list[int]]] = {}
        self.saved: list[int] = []
        self.end = 0

    def on_refused(self, request: Request, reason: str) -> None:
        raise AssertionError(reason)

    def on_step(self, plan: StepPlan, start_ns: int, durations_ns: Durations | int) -> None:
        assert plan.num_steps == 1
        self.end = start_ns + int(np.sum(durations_ns))
        for sequence in plan.admitted:
            self.times.setdefault(sequence.request, [[] for _ in range(sequence.request.num_sequences)])
        tables = [sequence.block_table for request in self.times for sequence in request.sequences]
        self.saved.append(sum(map(len, tables)) - len({block for table in tables for block in table}))
        if plan.work.num_saved_tokens:
            counts = Counter(block for table in tables for block in table)
            assert plan.work.num_shared_tokens == 4 * sum(count > 1 for count in counts.values())
            num_others = sum(table != [] for table in tables) - plan.num_decodes
            scale = 1.0 if not num_others else (plan.num_decodes - 1) / (plan.num_decodes + num_others - 1)
            assert plan.work.num_saved_tokens == int(4 * self.saved[-1] * scale)

    def on_transfers(self, plan: StepPlan, wait_ns: int) -> None: ...

    def on_commit(self, outcome: StepOutcome) -> None:
        for request, times in self.times.items():
            for sequence, each in zip(request.sequences, times, strict=False):
                each += [self.end] * (sequence.num_output_tokens - len(each))


def trace_of(seed: int) -> Trace:
    rng = np.random.default_rng(seed)
    columns = {"num_prompt_tokens": rng.integers(1, 40, 20), "num_output_tokens": rng.integers(1, 25, 20)}
    table = trace_table(columns | {"n": rng.integers(1, 5, 20)})
    return Trace("t", table, "made")


@pytest.mark.parametrize(
    ("policy", "num_blocks"), [("mixed", 32), ("prefill_first", 30), pytest.param("mixed", 400, marks=pytest.mark.slow)]
)
def test_the_tables_agree_with_a_log_of_every_sequence(policy: str, num_blocks: int) -> None:
    num_preempted = 0.0
    for seed in range(3):
        trace, log = trace_of(seed), SequenceLog()
        runs = []
        for compress in (False, True):
            options: dict[str, Any] = {"observer": log} if not compress else {}
            arrivals = OpenLoop(np.sort(np.random.default_rng(seed).integers(0, 10**8, 20)))
            scheduler = make(8, policy=policy, num_blocks=num_blocks)
            runs += simulate(trace, arrivals, [scheduler], COST, compress=compress, **options)
        assert_same(*runs)
        gaps = []
        table = runs[0].requests.set_index("request_id")
        for request, times in log.times.items():
            row: Any = table.loc[request.request_id]
            first, last, count = min(t[0] for t in times), max(t[-1] for t in times), sum(map(len, times))
            assert (row.first_token_time, row.finish_time) == (first * 1e-9, last * 1e-9)
            assert (row.num_output_tokens, row.num_sequences) == (count, len(times))
            assert row.num_requested_tokens == trace.table["num_output_tokens"][request.request_id] * len(times)
            each = count / len(times)
            if each > 1:
                assert row.tpot == pytest.approx((last - first) * 1e-9 / (each - 1), abs=1e-12)
            gaps += [gap for t in times for gap in np.diff(t).tolist()]
        np.testing.assert_array_equal(expanded_gaps(runs[0]), np.sort(gaps) * 1e-9)
        assert runs[0].steps["num_saved_blocks"].tolist() == log.saved and max(log.saved) > 0
        num_preempted += runs[0].steps["num_preempted"].sum()
    assert (num_preempted > 0) == (num_blocks < 100)
