"""Replicas that serve a workload behind a router, and what they tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from engine.core.kv.reserved.contiguous import ContiguousManager
from engine.core.plan import StepOutcome, StepPlan
from engine.core.planning.policy_options import NoOptions
from engine.core.routing.least_requests import LeastRequests
from engine.core.routing.round_robin import RoundRobin
from engine.core.routing.router import Router
from engine.core.scheduler import Scheduler
from engine.core.scheduler_making import make_scheduler
from engine.core.scheduler_options import SchedulerOptions
from engine.core.sequence import Request
from engine.core.work import StepWork
from harness.record.record import Record, RecordedRun
from harness.record.recorder import Recorder
from harness.workload.content import request_factory
from harness.workload.trace import Trace
from simulator.arrivals import NEVER, Arrivals
from simulator.copies.connector_links import ConnectorLinks
from simulator.copies.transfers import NoTransfers, TransferEngine
from simulator.costs.cost import CostModel
from simulator.costs.roofline import RooflineCost
from simulator.decode_run import Durations
from simulator.device import Device
from simulator.drivers.lockstep import Ranks
from simulator.fleets.fleet import Fleet
from simulator.fleets.gateway import Decoders
from simulator.fleets.handover import Network, Port
from simulator.replica import Replica
from simulator.versions.front_end import FrontEndTimes, SecondFrontEnd
from tests.simulator.builders import MODEL, resized
from tests.simulator.workloads import Case, make_arrivals, make_trace

ROOFLINE = RooflineCost(
    resized(
        MODEL,
        num_layers=4,
        hidden_size=256,
        num_attention_heads=8,
        num_kv_heads=4,
        head_dim=32,
        intermediate_size=768,
        vocab_size=2048,
    ),
    Device("d", 1 << 30, 1e11, {"bf16": 1e12, "fp32": 1e11}, 0.8, 0.7, 1e9, 1e-5, 1e-4),
)


class FlatCost:
    """Every step takes the same time, whatever its work."""

    def __init__(self, each_ns: int = 1000) -> None:
        self._each_ns = each_ns

    def step_ns(self, work: StepWork) -> int:
        return self._each_ns

    def decode_ns(self, work: StepWork, num_steps: int) -> NDArray[np.int64]:
        return np.full(num_steps, self._each_ns)


class PlanLog:
    """An observer that keeps what it is told.

    Attributes:
        plans: start and durations of each plan.
        num_prefill_tokens: computed in all prompt chunks.
        finished: requests, whose sequences a replica forgets.
        num_output_tokens: of each finished request.
        num_preemptions, num_recomputed_tokens: of all finished requests.
    """

    def __init__(self) -> None:
        self.plans: list[tuple[int, NDArray[np.int64]]] = []
        self.num_prefill_tokens = 0
        self.finished: list[Request] = []
        self.num_output_tokens: dict[int, int] = {}
        self.num_preemptions = 0
        self.num_recomputed_tokens = 0

    def on_refused(self, request: Request, reason: str) -> None:
        raise AssertionError(reason)

    def on_step(self, plan: StepPlan, start_ns: int, durations_ns: Durations | int) -> None:
        self.plans.append((start_ns, np.atleast_1d(np.asarray(durations_ns, np.int64))))
        assert len(self.plans[-1][1]) == plan.num_steps
        self.num_prefill_tokens += sum(chunk.num_tokens for chunk in plan.prefills)

    def on_transfers(self, plan: StepPlan, wait_ns: int) -> None: ...

    def on_commit(self, outcome: StepOutcome) -> None:
        self.finished += outcome.finished
        for request in outcome.finished:
            self.num_output_tokens[request.request_id] = request.num_output_tokens
            self.num_preemptions += request.num_preemptions
            self.num_recomputed_tokens += request.num_recomputed_tokens


class Both:
    """Hands everything on to two observers."""

    def __init__(self, *observers: object) -> None:
        self._observers = observers

    def __getattr__(self, name: str) -> Any:
        return lambda *args: [getattr(observer, name)(*args) for observer in self._observers]


def simulate(
    trace: Trace,
    arrivals: Arrivals,
    schedulers: list[Scheduler],
    cost_model: CostModel = ROOFLINE,
    *,
    make_request: Callable[[int, int], Request] | None = None,
    observer: Any = None,
    make_transfers: Callable[[], TransferEngine] | None = None,
    rule: Router | None = None,
    alone: bool = True,
    ahead: int = 0,
    reading_ns: int = 0,
    reads_steps: bool = False,
    num_prefill: int = 0,
    network: Network | None = None,
    decode_rule: Router | None = None,
    local_tokens: int = 0,
    second_front_end: FrontEndTimes | None = None,
    ranks: Sequence[Ranks] = (),
    host_bytes_per_s: float = 1e9,
    **options: Any,
) -> list[RecordedRun]:
    """Serve the trace to its end with a replica for each scheduler, by default in turn; returns the tables of each.

    Args:
        observer: sees what the recorders of all replicas see.
        alone: whether a single replica runs without an event queue.
        ahead: so many requests for each replica are sent before they are due.
        reading_ns: how often the rule reads the replicas' metrics.
        reads_steps: whether these are of the end of the last step.
        num_prefill: so many of the schedulers, from the first on, compute prompts for the others.
        network: between these and the others.
        decode_rule, local_tokens: as of `Decoders`.
        second_front_end: that requests pass before the others.
        ranks: replicas that step together.
        host_bytes_per_s: of schedulers that store on the host what they compute, blocks of 1,000 bytes.
        options: arguments of the replicas.
    """
    make_request = make_request or request_factory(trace, schedulers[0].blocks.block_size)
    recorders = [Recorder(reserves=isinstance(each.blocks, ContiguousManager)) for each in schedulers]
    network = network or Network(1e9)
    replicas: list[Replica] = []
    ports: list[Port] = []
    for scheduler, recorder in zip(schedulers, recorders, strict=True):
        sees: Any = Both(recorder, observer) if observer else recorder
        transfers = make_transfers() if make_transfers else None
        if scheduler.storing is not None:
            transfers = ConnectorLinks(scheduler, 1000, host_bytes_per_s)
        if num_prefill:
            ports.append(Port(network, 100, transfers or NoTransfers(), num_layers=4))
            transfers = ports[-1]
        replicas.append(Replica(scheduler, cost_model, sees, transfers=transfers, **options))
    decoders = None
    if num_prefill:
        decode_rule = decode_rule or LeastRequests(NoOptions())
        split = slice(num_prefill), slice(num_prefill, None)
        first, last = (ports[part] for part in split)
        prompts = trace.table["num_prompt_tokens"].tolist()
        front_end = second_front_end and SecondFrontEnd(second_front_end, prompts, len(replicas[split[1]]))
        decoders = Decoders(
            replicas[split[1]], first, last, decode_rule, local_tokens, network.request_ns, front_end or None
        )
        replicas = replicas[split[0]]
    rule = rule or RoundRobin(NoOptions())
    Fleet(
        arrivals,
        make_request,
        replicas,
        rule,
        decoders=decoders,
        ranks=ranks,
        alone=alone,
        ahead=ahead,
        reading_ns=reading_ns,
        reads_steps=reads_steps,
    ).run()
    for scheduler in schedulers:
        assert not scheduler.unfinished
        scheduler.check_integrity()
    assert arrivals.next_ns == NEVER
    return [Record([recorder]).tables(trace, [[]]) for recorder in recorders]


def simulate_case(case: Case, cost_model: CostModel = ROOFLINE, **options: Any) -> list[RecordedRun]:
    trace = make_trace(case)
    schedulers = [case.make_scheduler(trace) for _ in range(case.num_replicas)]
    lookahead = 1 if case.options.async_scheduling else case.max_lookahead_steps
    arrivals = make_arrivals(case, trace)
    return simulate(trace, arrivals, schedulers, cost_model, max_lookahead_steps=lookahead, **options)


def expanded_gaps(run: RecordedRun) -> NDArray[np.float64]:
    return np.sort(np.repeat(run.gaps.values, run.gaps.weights))


def assert_same(left: RecordedRun, right: RecordedRun, *, but: tuple[str, ...] = ()) -> None:
    """Two runs are equal to the last bit, `but` for these columns of the steps."""
    pd.testing.assert_frame_equal(left.requests, right.requests, check_exact=True)
    columns = [column for column in left.steps if column not in but]
    pd.testing.assert_frame_equal(left.steps[columns], right.steps[columns], check_exact=True)
    np.testing.assert_array_equal(expanded_gaps(left), expanded_gaps(right))


def make(max_num_seqs: int, *, num_blocks: int = 1000, **options: Any) -> Scheduler:
    """A scheduler with blocks of 4 tokens and at most 100 tokens a step."""
    return make_scheduler(
        SchedulerOptions(**options),
        num_blocks=num_blocks,
        block_size=4,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=100,
    )
