"""Several real engines behind a router: a simulation of the same arrivals sends each request to the same server."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from engine.core.hashing import extend_hashes  # noqa: E402
from engine.core.routing import find_router  # noqa: E402
from engine.core.routing.router import Router  # noqa: E402
from engine.core.scheduler_making import make_scheduler  # noqa: E402
from engine.core.scheduler_options import SchedulerOptions  # noqa: E402
from engine.core.sequence import Request  # noqa: E402
from harness import run  # noqa: E402
from harness.engines.real_fleet import FleetReplay  # noqa: E402
from harness.errors import ConfigError  # noqa: E402
from harness.record.issued import Issued  # noqa: E402
from harness.record.record import Record  # noqa: E402
from harness.record.recorder import Recorder  # noqa: E402
from harness.workload.arrivals import ClosedLoop, OpenLoop  # noqa: E402
from simulator.arrivals import Arrivals  # noqa: E402
from simulator.fleets.fleet import Fleet  # noqa: E402
from simulator.replica import Replica  # noqa: E402
from tests.harness.builders import config  # noqa: E402
from tests.harness.engines.builders import (  # noqa: E402
    BLOCK_SIZE,
    LIMITS,
    LoggingRecorder,
    MeasuredCost,
    assert_equal,
    check_ended,
    make_intake,
    make_trace,
)

NUM_BLOCKS, NUM_SERVERS = 200, 2


class RoutedRecorder(LoggingRecorder):
    """Requests come when they were issued: an engine that was idle begins then."""

    def on_issued(self, issued: Issued, now_ns: int) -> None:
        super().on_issued(issued, now_ns)
        self.issued[-1] = issued.issued_ns, issued.row


def rule(name: str) -> Router:
    router = find_router(name)
    assert router is not None
    return router(router.options_type())


def serve_real(name: str, arrivals: Arrivals) -> list[RoutedRecorder]:
    torch.set_num_threads(1)
    trace, options = make_trace(), SchedulerOptions()
    intakes: list[Any] = []
    recorders: list[RoutedRecorder] = []
    for _ in range(NUM_SERVERS):
        intake, _ = make_intake(trace, options, NUM_BLOCKS, 1)
        recorders.append(RoutedRecorder())
        object.__setattr__(intake, "observer", recorders[-1])
        object.__setattr__(intake, "prompts", intakes[0].prompts if intakes else intake.prompts)
        intakes.append(intake)
    FleetReplay(intakes, arrivals, rule(name)).run()
    for intake in intakes:
        check_ended(intake)
    return recorders


def simulate(name: str, real: list[RoutedRecorder]) -> list[Recorder]:
    """The same requests, which come when they were issued, on servers whose steps take what they took."""
    issued = sorted((each for recorder in real for each in recorder.issued), key=lambda pair: (pair[0], pair[1]))
    before = {row: request for recorder in real for row, request in recorder.requests.items()}

    def make(order: int, arrival_ns: int) -> Request:
        known = before[issued[order][1]]
        tokens, hashes = known.sequences[0].token_ids or [], list[int]()
        extend_hashes(hashes, tokens, BLOCK_SIZE, len(tokens) // BLOCK_SIZE)
        return Request(
            known.request_id, known.num_prompt_tokens, known.max_tokens, known.arrival_time, block_hashes=hashes,
            priority=known.priority, tenant=known.tenant, deadline=known.deadline,
        )  # fmt: skip

    replicas, recorders = [], []
    for recorder in real:
        scheduler = make_scheduler(
            SchedulerOptions(), num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, max_model_len=512, **LIMITS
        )
        recorders.append(Recorder())
        recorders[-1].record_spans()
        replicas.append(Replica(scheduler, MeasuredCost(recorder.durations), recorders[-1], compress=False))
    Fleet(OpenLoop(np.array([now for now, _ in issued])), make, replicas, rule(name)).run()
    return recorders


def arrivals_of(kind: str) -> Any:
    if kind == "closed":
        return ClosedLoop(24, 5)
    times = np.arange(24) * 4_000_000
    times[12:] += 100_000_000  # the engines fall idle in between
    return OpenLoop(times)


RULES = ("least_requests", "prefix_affinity", "power_of_two", "round_robin", "least_tokens")
FOR_A_COMMIT = [
    ("least_requests", "open"), ("prefix_affinity", "closed"), ("power_of_two", "closed"), ("least_tokens", "open"),
]  # fmt: skip
OTHERS = [case for case in itertools.product(RULES, ("open", "closed")) if case not in FOR_A_COMMIT]


@pytest.mark.parametrize(
    ("name", "kind"), [*FOR_A_COMMIT, *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHERS)]
)
def test_a_simulated_fleet_decides_as_real_engines_behind_the_same_router(name: str, kind: str) -> None:
    real = serve_real(name, arrivals_of(kind))
    twin = simulate(name, real)
    trace = make_trace()
    both = ([each.recorder for each in real], twin)
    chosen = [Record(recorders).tables(trace, [[], []]).requests["server"] for recorders in both]
    assert chosen[0].tolist() == chosen[1].tolist() and {*chosen[0]} == {0, 1}
    for measured, simulated in zip(real, twin, strict=True):
        assert_equal(measured, simulated, trace)


def test_a_run_of_two_real_engines_has_the_tables_of_a_fleet() -> None:
    small = ("engine=cpu", "engine.num_threads=1", "model=tiny", "trace.num_requests=12", "num_blocks=400",
             "max_num_seqs=4", "arrival.rate=20", "router=least_requests", "trace.prompt.mean=20",
             "trace.output.mean=6")  # fmt: skip
    result = run("trace=synthetic", "replicas=2", *small)
    assert (result.requests["status"] == "finished").all() and {*result.requests["server"]} == {0, 1}
    assert {*result.steps["server"]} == {0, 1} and result.summary["num_servers"] == 2
    with pytest.raises(ConfigError, match="engine=cpu is one server"):
        config("trace=synthetic", "replicas=2", *small, "task=serve")
