"""The simulated engine: a fleet of one server or many, each with the scheduling core and a cost model."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from engine.core.routing.router import Router
from engine.core.sequence import Request
from harness.engines.host_memory import check_pool
from harness.engines.resolving.known_error import cost_model_text
from harness.errors import ConfigError
from harness.record.record import Record
from harness.record.recorder import Recorder
from harness.workload.content import request_factory
from harness.workload.trace import Trace
from simulator.arrivals import Arrivals
from simulator.costs.cost import CostModel
from simulator.costs.drafting import DraftingCost
from simulator.costs.profiled import ProfiledCost
from simulator.fleet import Fleet
from simulator.profile.checks import differences
from simulator.replica import ImplausibleStepError
from simulator.servers import make_replica, stage_costs
from simulator.system import System


class SimulatedEngine:
    """A simulation of `trace` by equal servers, set up and ready to go; the record fills while `run` runs.

    Args:
        cost: prices the steps; None takes the system's own cost model.
        num_servers: how many servers like `system` there are.
        rule: chooses the server of each request, where there are several.
        reading_ns: every so many ns the router reads the metrics of the servers; 0 where it always knows them.

    Raises:
        ConfigError: the pools need more memory than there is.
    """

    def __init__(
        self,
        system: System,
        trace: Trace,
        arrivals: Arrivals,
        cost: CostModel | None = None,
        *,
        num_servers: int = 1,
        rule: Router | None = None,
        reading_ns: int = 0,
    ) -> None:
        recorders = [Recorder(reserves=system.contiguous is not None) for _ in range(num_servers)]
        self.record = Record(recorders)
        self.num_blocks = system.pool.num_blocks
        self.block_bytes = system.block_bytes
        self._system = system
        self._cost = cost or system.cost_model()
        check_pool(num_servers * (self.num_blocks + system.tiers.num_blocks))
        self._replicas = [make_replica(system, self._cost, recorder) for recorder in recorders]
        make_request = request_factory(
            trace, system.block_size, cache_outputs=system.cache_outputs, max_model_len=system.max_model_len
        )
        stages = [stage_costs(system, self._cost)] * num_servers
        self._fleet = Fleet(arrivals, make_request, self._replicas, rule, stages=stages, reading_ns=reading_ns)

    @property
    def device_name(self) -> str:
        return self._system.device.name

    def describe(self) -> str:
        """The KV pool of a server, for the log."""
        return self._system.pool.describe()

    def step_times_from(self) -> str:
        """Where the times of steps come from, in one line."""
        return self._system.step_times_from()

    def cost_model_text(self) -> str:
        """The cost model and its known error on the device."""
        return cost_model_text(self._system)

    def run(self) -> None:
        """Simulate to the end, or to the end of the plans in which `stop` was called.

        Raises:
            ConfigError: the device's rates price a step beyond all reason.
        """
        # A run makes no reference cycles, and looking for them among a million requests takes a tenth of its time.
        gc.disable()
        try:
            self._fleet.run()
        except ImplausibleStepError as error:
            raise ConfigError(f"device={self.device_name}: {error}") from error
        finally:
            gc.enable()

    def stop(self) -> None:
        self._fleet.stop()

    def unfinished(self) -> Sequence[Sequence[Request]]:
        """Of each server the requests that are waiting or running."""
        return [replica.scheduler.unfinished for replica in self._replicas]

    def notes(self) -> list[str]:
        """Why the step times may be wrong, a line each: constants that were fitted to another system, settings that the
        profile was not measured with, and steps beyond the ranges of the profile."""
        system = self._system
        found = list(system.notes)
        found += system.calibration.other_systems(system.fitted_for()) if system.calibration else []
        cost = self._cost.model if isinstance(self._cost, DraftingCost) else self._cost
        if not isinstance(cost, ProfiledCost):
            return found
        found += differences(cost.profile, system.model, system.device, system.block_size)
        if outside := cost.outside():
            share = max(axis.plans for axis in outside.values()) / cost.num_plans
            axes = ", ".join(f"{name} up to {axis.factor:.2g}x" for name, axis in outside.items())
            found.append(f"{share:.1%} of plans or more were priced beyond the profile's ranges: {axes}")
        return found

    def close(self) -> None:
        """Nothing to free."""
