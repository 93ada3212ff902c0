"""What tests of fleets share: a router that looks at everything, hand-overs by hand, and the content of KV memories."""

from __future__ import annotations

from collections import abc
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from engine.core.kv.tiers.tier import DEVICE
from engine.core.plan import StepOutcome, StepPlan
from engine.core.routing.router import BaseRouter, ServerView
from engine.core.scheduler import Scheduler
from engine.core.scheduler_options import SchedulerOptions
from engine.core.sequence import Request, Sequence, SequenceStatus
from harness.record.record import RecordedRun
from harness.workload.arrivals import OpenLoop
from simulator.decode_run import Durations
from simulator.fleets.handover import Network
from tests.simulator.replicas import FlatCost, make, simulate
from tests.simulator.workloads import Case, cases, simple_trace

MS = 1_000_000
STEP = FlatCost(MS)
SLOW = Network(1e6, latency_ns=1_000, request_ns=50_000)  # blocks of 100 bytes take 0.1 ms
BY_LAYERS = replace(SLOW, by_layers=True)  # of a model with 4 layers


class Nosy(BaseRouter):
    """Looks at all that there is to see, and chooses by it."""

    reads_prefixes = True

    def __init__(self, options: Any = None, order: abc.Sequence[int] | None = None) -> None:
        super().__init__(options)
        self.seen: list[tuple[Any, ...]] = []
        self._order = order  # the number that each server goes by

    def choose(self, request: Request, servers: abc.Sequence[ServerView]) -> int:
        order = self._order or range(len(servers))
        views = [self._look(request, servers[order.index(number)]) for number in range(len(servers))]
        self.seen.append((request.request_id, request.arrival_time, *views))
        number = min(range(len(views)), key=lambda n: (views[n][2] + views[n][3] - views[n][5] // 8, -views[n][4]))
        return order.index(number)

    @staticmethod
    def _look(request: Request, server: ServerView) -> tuple[int, ...]:
        counts = server.num_requests, server.num_tokens, server.num_waiting, server.num_running
        return (*counts, server.num_free_blocks, server.prefix_hits(request))


def options_apart(options: SchedulerOptions) -> bool:
    """Whether a prompt whose KV has come may go on as a cut one."""
    return options.enable_chunked_prefill and options.max_padding is None and options.policy != "static"


def apart_cases() -> st.SearchStrategy[Case]:
    return cases(num_replicas=st.sampled_from([2, 3, 5])).filter(lambda case: options_apart(case.options))


networks = st.sampled_from([Network(1e12), SLOW, Network(3e4, 20_000_000, 7), BY_LAYERS, Network(3e4, by_layers=True)])


def two(
    prompts: list[int],
    outputs: list[int],
    arrivals_ms: list[float],
    schedulers: list[Scheduler] | None = None,
    *,
    compress: bool = True,
    network: Network = SLOW,
) -> list[RecordedRun]:
    """A server for prompts and one for decodes; steps take 1 ms."""
    times = np.round(np.array(arrivals_ms) * MS).astype(np.int64)
    trace, schedulers = simple_trace(prompts, outputs), schedulers or [make(4), make(4)]
    return simulate(trace, OpenLoop(times), schedulers, STEP, num_prefill=1, network=network, compress=compress)


class Memory:
    """An observer that keeps what is in the KV memory of a server, by block and slot, and reads it in every step."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.slots: dict[tuple[int, int], object] = {}
        self.num_reads = 0
        self.finished: list[int] = []

    def _slot(self, sequence: Sequence, position: int) -> tuple[int, int]:
        index, offset = divmod(position, self.block_size)
        return sequence.block_table[index], offset

    def _content(self, sequence: Sequence, position: int) -> object:
        """What stands for the tokens up to a position: equal for equal prefixes, as far as the trace's hashes tell."""
        index, hashes = position // self.block_size, sequence.block_hashes or []
        if index < len(hashes) and hashes[index] >= 0:  # below 0: named by a preemption, for this sequence alone
            return hashes[index], position
        return f"row {sequence.request_id}", position

    def write(self, sequence: Sequence, start: int, end: int) -> None:
        for position in range(start, end):
            self.slots[self._slot(sequence, position)] = self._content(sequence, position)

    def check(self, sequence: Sequence, end: int) -> None:
        if sequence.status is SequenceStatus.PADDING:  # what it computes nobody gets
            return
        for position in range(end):
            assert self.slots.get(self._slot(sequence, position)) == self._content(sequence, position)
        self.num_reads += end

    def on_refused(self, request: Request, reason: str) -> None:
        raise AssertionError(reason)

    def on_transfers(self, plan: StepPlan, wait_ns: int) -> None:
        for source_tier, source, target_tier, target in plan.transfers:
            assert source_tier == target_tier == DEVICE
            for offset in range(self.block_size):
                self.slots[target, offset] = self.slots.get((source, offset))

    def on_step(self, plan: StepPlan, start_ns: int, durations_ns: Durations | int) -> None:
        computed = [(chunk.sequence, chunk.start, chunk.start + chunk.num_tokens) for chunk in plan.prefills]
        decoded = [(sequence, sequence.num_computed_tokens) for sequence in plan.decodes]
        computed += [(sequence, start, start + 1) for sequence, start in decoded]
        for part in computed:  # all is written before any of it is read
            self.write(*part)
        for sequence, _, end in computed:
            self.check(sequence, end)

    def on_commit(self, outcome: StepOutcome) -> None:
        self.finished += [request.request_id for request in outcome.finished]
