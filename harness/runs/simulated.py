"""The simulated engine: scheduling core, cost model and replica of a resolved system."""

from __future__ import annotations

import gc
from dataclasses import replace

from engine.core.decodes.uniform import UniformDecodes
from engine.core.scheduler_making import make_scheduler
from engine.core.scheduler_options import SchedulerOptions
from engine.core.sequence import Request
from engine.core.work import ChunkWork, StepWork
from harness.errors import ConfigError
from harness.runs import tiers
from harness.runs.known_error import cost_model_text
from harness.runs.memory import check_pool
from harness.runs.recorder import Recorder
from harness.runs.system import System
from harness.workload.content import request_factory
from harness.workload.trace import Trace
from simulator.arrivals import Arrivals
from simulator.beams import ChooseParents, keep_all
from simulator.costs.cost import CostModel
from simulator.costs.drafting import DraftingCost
from simulator.costs.profiled import ProfiledCost
from simulator.fleet import Fleet
from simulator.profile.checks import differences
from simulator.replica import ImplausibleStepError, Replica


class SimulatedEngine:
    """A simulation of `trace`, set up and ready to go; the recorder fills while `run` runs.

    Args:
        cost: prices the steps; None takes the system's own cost model.
        choose_parents: which beams continue which, for traces with beams.

    Raises:
        ConfigError: the cost model is not available, the pool needs more memory than there is, or the host tier has
            no room for a block.
    """

    def __init__(
        self,
        system: System,
        trace: Trace,
        arrivals: Arrivals,
        cost: CostModel | None = None,
        *,
        choose_parents: ChooseParents = keep_all,
    ) -> None:
        self.recorder = Recorder(reserves=system.contiguous is not None)
        self.num_blocks = system.pool.num_blocks
        self.block_bytes = system.pool.block_bytes * system.tensor_parallel_size
        self._system = system
        self._cost = cost or system.cost_model()
        num_host_blocks = tiers.num_host_blocks(system.tiers, system.pool, system.tensor_parallel_size)
        offload = tiers.offload_options(system.tiers, system.pool, system.tensor_parallel_size)
        check_pool(self.num_blocks + num_host_blocks + (offload.num_disk_blocks if offload else 0))
        self._scheduler = make_scheduler(
            _with_recompute_time(system),
            num_blocks=self.num_blocks,
            block_size=system.block_size,
            max_num_seqs=system.max_num_seqs,
            max_num_batched_tokens=system.max_num_batched_tokens,
            max_model_len=system.max_model_len,
            make_decodes=UniformDecodes if system.speculation is None else system.speculation.make_decodes,
            contiguous=system.contiguous,
            num_host_blocks=num_host_blocks,
            transfer_block_us=tiers.transfer_block_us(system.tiers, system.pool),
            offload=offload,
        )
        ranks = system.tensor_parallel_size
        self._links = tiers.tier_links(system.tiers, system.pool, ranks) if num_host_blocks else None
        make_request = request_factory(
            trace,
            system.block_size,
            cache_outputs=system.engine.cache_outputs,
            max_model_len=system.max_model_len,
        )
        replica = Replica(
            self._scheduler,
            self._cost,
            self.recorder,
            compress=system.engine.compress,
            max_lookahead_steps=system.engine.max_lookahead_steps,
            choose_parents=choose_parents,
            transfers=self._links,
        )
        self._fleet = Fleet(arrivals, make_request, [replica])

    @property
    def device_name(self) -> str:
        return self._system.device.name

    def describe(self) -> str:
        """The KV pool, for the log."""
        return self._system.pool.describe()

    def step_times_from(self) -> str:
        """Where the times of steps come from, in one line."""
        return self._system.step_times_from()

    def cost_model_text(self) -> str:
        """The cost model and its known error on the device."""
        return cost_model_text(self._system)

    def run(self) -> None:
        """Simulate to the end, or to the end of the plan in which `stop` was called.

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

    def unfinished(self) -> list[Request]:
        """Requests that are waiting or running."""
        return self._scheduler.unfinished

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


def _with_recompute_time(system: System) -> SchedulerOptions:
    """The scheduler's options; preemption=auto predicts with the time of a token in the largest prefill step."""
    options = system.scheduler
    if options.preemption != "auto" or options.recompute_token_us is not None:
        return options
    num_tokens = min(system.max_num_batched_tokens, system.max_model_len)
    step_ns = system.cost_model().step_ns(StepWork([ChunkWork(0, num_tokens, True)], 0, 0, 0))
    return replace(options, recompute_token_us=step_ns / num_tokens / 1e3)
