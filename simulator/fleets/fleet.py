"""A run: one server or many, behind a router that decides when a request arrives.

Prompts and decodes may have servers of their own (`simulator.fleets.handover`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from engine.core.routing.router import Router
from simulator.arrivals import NEVER, Arrivals
from simulator.costs.cost import CostModel
from simulator.drivers.alone import run_alone
from simulator.drivers.clock import Clock
from simulator.drivers.independent import Independent
from simulator.drivers.lockstep import Lockstep, Ranks
from simulator.drivers.phases import HANDOVERS, READINGS, TRANSFERS
from simulator.drivers.pipeline import Pipeline
from simulator.drivers.shared import Shared
from simulator.drivers.timetable import Call
from simulator.fleets.gateway import Decoders, Gateway, MakeRequest
from simulator.fleets.handover import Exchange
from simulator.fleets.staffing import Crew, Staffing
from simulator.replica import Replica, Source


def _tell(replica: Replica) -> None:
    replica.on_change()  # which its driver sets


class Fleet:
    """Serves the requests of `arrivals` with `replicas`.

    A single replica runs without a queue of events. Several share the clock of a SimPy environment.

    Args:
        rule: chooses the server of each request; None for one server.
        decoders: the servers that decode, where `replicas` compute the prompts only.
        stages: of each of all servers the cost models of its pipeline's stages, or none.
        ranks: the servers that step together.
        staffing: what changes the servers; where all serve whole requests, in one lane, without tiers.
        reading_ns: every so many ns the router reads what servers tell of themselves; 0 where it always knows.
        reads_steps: whether it reads what they sent with the outputs of their last step, and not how they are.
        alone: whether a single replica may run without the queue.
        ahead: so many requests for each server are sent before they are due; more than 0 only where no server concerns
            another, and neither arrivals nor the rule depend on what servers do.

    Raises:
        ValueError: a replica that is no pipeline has several lanes.
    """

    def __init__(
        self,
        arrivals: Arrivals,
        make_request: MakeRequest,
        replicas: Sequence[Replica],
        rule: Router | None = None,
        *,
        decoders: Decoders | None = None,
        stages: Sequence[Sequence[CostModel]] = (),
        ranks: Sequence[Ranks] = (),
        staffing: Staffing | None = None,
        reading_ns: int = 0,
        reads_steps: bool = False,
        alone: bool = True,
        ahead: int = 0,
    ) -> None:
        entries = replicas
        if decoders is not None:
            exchange = Exchange(lambda then: self._later(0, then, TRANSFERS))
            replicas = [*entries, *decoders.replicas]
            for replica, port in zip(replicas, (*decoders.prefill_ports, *decoders.ports), strict=True):
                port.exchange = exchange
                port.on_change = partial(_tell, replica)
        for number, replica in enumerate(replicas):
            if replica.scheduler.num_lanes > 1 and not (stages and stages[number]):
                raise ValueError("a replica has one lane; several are for pipelines")
        self._replicas = replicas
        self._env = Clock()
        self._timetable = Independent(self._env, ahead) if ahead else self._env.timetable
        self._stages = stages
        self._ranks = ranks
        self._staffing = staffing
        self._alone = alone and staffing is None and len(replicas) == 1 and not any(stages)
        self._reading_ns = reading_ns
        self._gateway = Gateway(
            arrivals,
            make_request,
            entries,
            rule,
            clock=lambda: self._timetable.now,
            decoders=decoders,
            later=self._later,
        )
        if reads_steps:
            self._gateway.watch_steps()
        self._timetable.source = self._gateway

    def run(self) -> int:
        """Serve until nothing is left or `stop` was called; returns the time then, in ns.

        Raises:
            ImplausibleStepError: a cost model prices a step beyond all reason.
        """
        if self._alone:
            (replica,) = self._replicas
            replica.source = self._gateway
            return run_alone(replica)
        for first, count, shared_ns in self._ranks:
            Lockstep(self._env, self._replicas[first : first + count], shared_ns)
        drivers: list[Shared] = []
        in_step = {first + rank for first, count, _ in self._ranks for rank in range(count)}
        for number, replica in enumerate(self._replicas):
            if number in in_step:
                continue
            replica.outlook = self._gateway
            if self._stages and self._stages[number]:
                Pipeline(self._env, replica, self._stages[number])
            else:
                drivers.append(Shared(self._timetable, replica))
        crew = None
        if self._staffing is not None:
            clock = self._timetable
            crew = Crew(self._staffing, self._gateway, self._replicas, drivers, self._later, lambda: clock.now)
        if self._reading_ns and len(self._replicas) > 1:
            self._timetable.call(READINGS, 0, self._read)
        self._timetable.run()
        while crew is not None and crew.give_up():
            self._timetable.run()
        return int(self._timetable.now)

    def stop(self) -> None:
        """Let each server end the plan that is under way, and nothing more."""
        for replica in self._replicas:
            replica.is_stopping = True
        self._timetable.source = Source()  # from which nothing comes

    def _later(self, delay_ns: int, then: Callable[[], None], phase: int = HANDOVERS) -> None:
        self._timetable.call(phase, delay_ns, lambda call: then())

    def _read(self, call: Call) -> None:
        self._gateway.read_metrics()
        if self._timetable.next_ns < NEVER:  # as long as anything is to come
            self._timetable.call(READINGS, self._reading_ns, self._read)
