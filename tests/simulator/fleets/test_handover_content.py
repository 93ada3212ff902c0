"""Every read of the KV memories of servers that hand prompts over finds what was written there for that prefix."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.core.planning.policy_options import NoOptions
from engine.core.routing.least_requests import LeastRequests
from engine.core.scheduler_options import SchedulerOptions
from engine.core.sequence import Sequence
from harness.workload.content import request_factory
from simulator.copies.transfers import NoTransfers
from simulator.fleets.fleet import Fleet
from simulator.fleets.gateway import Decoders
from simulator.fleets.handover import Network, Port
from simulator.replica import Replica
from tests.selection import examples
from tests.simulator.fleets.builders import Memory, apart_cases, networks
from tests.simulator.replicas import FlatCost
from tests.simulator.workloads import Case, make_arrivals, make_trace


class CheckedPort(Port):
    """Copies content, and proves when blocks are let go that they still have what was copied."""

    memory: Memory

    def receive(self, request_id: int, began_ns: int, ended_ns: int) -> None:
        self.check_origin(request_id)
        super().receive(request_id, began_ns, ended_ns)

    def check_origin(self, request_id: int) -> None:
        origin, source = self._origins[request_id]
        assert isinstance(origin, CheckedPort)
        origin.memory.check(source, source.num_computed_tokens)

    def pull(self, sequence: Sequence, now_ns: int) -> None:
        if sequence.request_id not in self._received:  # whose origin may be free by now
            self.check_origin(sequence.request_id)
        first = sequence.num_registered_blocks * self.memory.block_size  # what is shared may come with this step
        self.memory.write(sequence, first, sequence.request.num_prompt_tokens - 1)
        super().pull(sequence, now_ns)

    def pop_ready(self, until_ns: int) -> list[Sequence]:
        ready = super().pop_ready(until_ns)
        for sequence in ready:
            num_tokens = sequence.request.num_prompt_tokens - sequence.request.prefilled_elsewhere
            self.memory.check(sequence, num_tokens)
        return ready


def serve(case: Case, network: Network, local_tokens: int) -> list[Memory]:
    trace = make_trace(case)
    schedulers = [case.make_scheduler(trace) for _ in range(case.num_replicas)]
    memories = [Memory(case.block_size) for _ in schedulers]
    ports: list[CheckedPort] = []
    replicas = []
    for scheduler, memory in zip(schedulers, memories, strict=True):
        ports.append(CheckedPort(network, 100, NoTransfers(), num_layers=4))
        ports[-1].memory = memory
        replicas.append(Replica(scheduler, FlatCost(10_000), memory, compress=False, transfers=ports[-1]))
    half = case.num_replicas // 2
    rules: Many[Any] = [LeastRequests(NoOptions()) for _ in range(2)]
    decoders = Decoders(replicas[half:], ports[:half], ports[half:], rules[0], local_tokens, network.request_ns)
    make_request = request_factory(trace, case.block_size)
    Fleet(make_arrivals(case, trace), make_request, replicas[:half], rules[1], decoders=decoders).run()
    for scheduler in schedulers:
        scheduler.check_integrity()
        assert scheduler.blocks.num_used_blocks() == 0 and not scheduler.unfinished
    finished = [row for memory in memories[half:] for row in memory.finished]
    assert sorted(finished) == list(range(len(trace.table)))
    return memories


SHARED_AS_IT_IS_FILLED = Case(  # a prompt holds a block that a decode of the same step writes
    options=SchedulerOptions(policy="admission_order", allocation="prompt", victim="spare_last"), block_size=1,
    extra_blocks=1, max_num_seqs=3, max_num_batched_tokens=16, arrivals="burst", contents="sessions",
    max_lookahead_steps=1, seed=0, num_replicas=2,
)  # fmt: skip


@examples(13)
@given(apart_cases(), networks, st.sampled_from([0, 20]))
@example(SHARED_AS_IT_IS_FILLED, Network(1e12), 20)
def test_nothing_is_read_that_was_not_written(case: Case, network: Network, local_tokens: int) -> None:
    memories = serve(case, network, local_tokens)
    assert sum(memory.num_reads for memory in memories) > 0


@pytest.mark.parametrize("extra_blocks", [1, 1000])
def test_prompts_that_are_shared_are_read_on_both_sides(extra_blocks: int) -> None:
    case = Case(
        options=SchedulerOptions(), block_size=4, extra_blocks=extra_blocks, max_num_seqs=4, max_num_batched_tokens=64,
        arrivals="open", contents="hash_ids", max_lookahead_steps=1, seed=3, num_replicas=4,
    )  # fmt: skip
    serve(case, Network(3e4, 1000, 7), 0)
