"""The simulated engine: a fleet of one server or many, each with the scheduling core and a cost model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from engine.core.sequence import Request
from harness.engines.host_memory import check_pool, no_cycles
from harness.engines.resolving.known_error import cost_model_text
from harness.errors import ConfigError
from harness.record.record import Record
from harness.record.recorder import Recorder
from harness.workload.content import request_factory
from harness.workload.trace import Trace, whole_numbers
from simulator.arrivals import Arrivals, OpenLoop
from simulator.costs.cost import CostModel
from simulator.costs.drafting import DraftingCost
from simulator.costs.profiled import ProfiledCost
from simulator.fleets.fleet import Fleet
from simulator.fleets.fleet_system import FleetSystem, ServerPool
from simulator.fleets.gateway import Decoders
from simulator.fleets.handover import Port
from simulator.fleets.staffing import Staffing
from simulator.profile.checks import differences
from simulator.replica import ImplausibleStepError
from simulator.servers import cost_of, make_port, make_replica, ranks_of, scheduler_of, stage_costs, stores_of
from simulator.system import System
from simulator.versions.front_end import FrontEnd, SecondFrontEnd

_AHEAD: Final = 64  # requests for each server: in some thousand steps it finds in the caches what it touched before


class SimulatedEngine:
    """A simulation of `trace`, set up and ready to go; the record fills while `run` runs.

    Args:
        fleet: the servers.
        cost: prices the steps of all; None takes the systems' own cost models.

    Raises:
        ConfigError: the pools need more memory than there is.
    """

    def __init__(self, fleet: FleetSystem, trace: Trace, arrivals: Arrivals, cost: CostModel | None = None) -> None:
        first, systems = fleet.pools[0].system, fleet.systems
        recorders = [Recorder(reserves=system.contiguous is not None) for system in systems]
        stores = stores_of(systems)
        self.record = Record(recorders, has_store=any(stores))
        self.pool_blocks = [pool.system.pool.num_blocks for pool in fleet.pools]
        self.num_blocks = first.pool.num_blocks
        self.block_bytes = first.block_bytes
        self._pools = fleet.pools
        self.meta: Mapping[str, Any] = {}
        num_shared = sum(store.tier.num_blocks for store in {*stores} if store is not None)
        check_pool(num_shared + sum(system.pool.num_blocks + system.tiers.num_blocks for system in systems))
        self._costs = [cost or pool.system.cost_model() for pool in fleet.pools]
        priced = [*zip(fleet.pools, self._costs, strict=True)]
        costs = [cost for pool, cost in priced for _ in range(pool.num_servers)]
        self._ports = list[Port]()
        if fleet.apart is not None:
            network = fleet.apart.network
            self._ports = [make_port(system, network, store) for system, store in zip(systems, stores, strict=True)]
        self._replicas = [
            make_replica(
                system,
                cost_of(system, costs[number]),
                recorders[number],
                self._ports[number] if self._ports else None,
                stores[number],
            )
            for number, system in enumerate(systems)
        ]
        names_outputs = any(system.names_outputs for system in systems)
        make_request = request_factory(
            trace, first.block_size, names_outputs=names_outputs, max_model_len=first.max_model_len
        )
        stages = [each for pool, cost in priced for each in [stage_costs(pool.system, cost)] * pool.num_servers]
        firsts = accumulate((pool.num_servers for pool in fleet.pools), initial=0)
        ranks = [each for at, (pool, cost) in zip(firsts, priced, strict=False) for each in ranks_of(pool, at, cost)]
        concern_others = any(stores) or any(stages) or ranks or fleet.apart or fleet.changes
        is_blind = fleet.rule is not None and not fleet.rule.reads_servers and isinstance(arrivals, OpenLoop)
        ahead = _AHEAD if is_blind and not concern_others else 0
        self.staffing = None
        if fleet.changes is not None:
            self.staffing = Staffing(
                fleet.changes,
                lambda number: scheduler_of(systems[number]),
                lambda request, number, now_ns: recorders[number].on_lost(request, now_ns),
            )
        entries, to = self._replicas[: fleet.num_entries], self._replicas[fleet.num_entries :]
        second, decoders = None, None
        if (times := first.front_end) is not None:
            prompt_tokens = whole_numbers(trace.rows["num_prompt_tokens"].to_numpy())
            arrivals = FrontEnd(arrivals, times, prompt_tokens, len(entries) * times.processes)
            second = SecondFrontEnd(times, prompt_tokens, len(to) * times.processes) if to else None
        if (apart := fleet.apart) is not None:
            halves = self._ports[: fleet.num_entries], self._ports[fleet.num_entries :]
            decoders = Decoders(to, *halves, apart.rule, apart.local_tokens, apart.network.request_ns, second)
        self._fleet = Fleet(
            arrivals, make_request, entries, fleet.rule, decoders=decoders, stages=stages, ranks=ranks,
            reading_ns=fleet.reading_ns, reads_steps=fleet.reads_steps, staffing=self.staffing, ahead=ahead,
        )  # fmt: skip

    @property
    def device_name(self) -> str:
        return ", ".join(dict.fromkeys(pool.system.device.name for pool in self._pools))

    def describe(self) -> str:
        """The KV pools, for the log."""
        return self._of_pools(lambda pool: pool.system.pool.describe())

    def step_times_from(self) -> str:
        """Where the times of steps come from."""
        return self._of_pools(lambda pool: pool.system.step_times_from())

    def cost_model_text(self, load: str) -> str:
        """The cost model and its known error on the device, under such a load."""
        return self._of_pools(lambda pool: cost_model_text(pool.system, load))

    def _of_pools(self, text: Callable[[ServerPool], str]) -> str:
        """What is said of each pool, once where it is the same of all."""
        texts: dict[str, list[str]] = {}
        for number, pool in enumerate(self._pools):
            name = pool.role if pool.role != "serve" else f"pool {number}"
            texts.setdefault(text(pool), []).append(name)
        if len(texts) == 1:
            return next(iter(texts))
        return "; ".join(f"{', '.join(names)}: {each}" for each, names in texts.items())

    def run(self) -> None:
        """Simulate to the end, or to the end of the plans in which `stop` was called.

        Raises:
            ConfigError: the device's rates price a step beyond all reason.
        """
        try:
            with no_cycles():
                self._fleet.run()
        except ImplausibleStepError as error:
            raise ConfigError(f"device={self.device_name}: {error}") from error
        if self.staffing is not None:
            counts = [(count.time_ns / 1e9, count.num_open, count.num_paid) for count in self.staffing.counts]
            self.meta = {"server_counts": counts, "num_retried": len(self.staffing.retried)}
        if self._ports:
            sizes = [pool.system.block_bytes for pool in self._pools for _ in range(pool.num_servers)]
            moved = sum(port.num_blocks * size for port, size in zip(self._ports, sizes, strict=True))
            self.meta = {**self.meta, "kv_transferred_bytes": moved}

    def stop(self) -> None:
        self._fleet.stop()

    def unfinished(self) -> Sequence[Sequence[Request]]:
        """Of each server the requests that are waiting or running."""
        return [replica.scheduler.unfinished for replica in self._replicas]

    def notes(self) -> list[str]:
        """Why the step times may be wrong, a line each: constants that were fitted to another system, settings that the
        profile was not measured with, and steps beyond the ranges of the profile."""
        found = [
            note
            for pool, cost in zip(self._pools, self._costs, strict=True)
            for note in _notes(pool.system, cost.model if isinstance(cost, DraftingCost) else cost)
        ]
        return list(dict.fromkeys(found))

    def close(self) -> None:
        """Nothing to free."""


def _notes(system: System, cost: CostModel) -> list[str]:
    found = list(system.notes)
    found += system.calibration.other_systems(system.fitted_for()) if system.calibration else []
    if not isinstance(cost, ProfiledCost):
        return found
    found += differences(cost.profile, system.model, system.device, system.block_size)
    if outside := cost.outside():
        share = max(axis.plans for axis in outside.values()) / cost.num_plans
        axes = ", ".join(f"{name} up to {axis.factor:.2g}x" for name, axis in outside.items())
        found.append(f"{share:.1%} of plans or more were priced beyond the profile's ranges: {axes}")
    return found
