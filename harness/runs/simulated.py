"""The simulated engine, put together from a configuration: scheduling core, cost model and SimPy replica."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import simpy

from engine.core.scheduler_options import SchedulerOptions, make_scheduler
from engine.core.sequence import Sequence
from harness.config import RunConfig
from harness.errors import ConfigError
from harness.runs import fitted as calibration
from harness.runs.recorder import Recorder
from harness.runs.shapes import device_rates, model_shape
from harness.workload.arrivals import ArrivalProcess
from harness.workload.content import sequence_factory
from harness.workload.trace import Trace
from simulator.costs.cost import CostModel
from simulator.costs.linear import LinearCost
from simulator.costs.profiled import ProfiledCost
from simulator.costs.roofline import RooflineCost
from simulator.hardware import DeviceTooSmallError, KVPool, size_kv_pool
from simulator.importers import open_profile
from simulator.profile.checks import check_units, differences
from simulator.profile.profile import ProfileError
from simulator.replica import ImplausibleStepError, Replica


class SimulatedEngine:
    """A run of `trace` set up and ready to go; the recorder fills while `run` runs. `cost` replaces the cost model of
    the configuration.

    Raises:
        ConfigError: the model does not fit on the device, or the cost model is not available.
    """

    def __init__(
        self, config: RunConfig, trace: Trace, arrivals: ArrivalProcess, cost: CostModel | None = None
    ) -> None:
        self.recorder = Recorder()
        self._config = config
        self.pool = kv_pool(config)
        self.num_blocks = self.pool.num_blocks
        self._env = simpy.Environment(initial_time=0)
        self._cost = cost or cost_model(config)
        self._scheduler = make_scheduler(
            SchedulerOptions(**config.scheduler.model_dump()),
            num_blocks=self.num_blocks,
            block_size=config.block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=config.max_model_len or config.model.max_position_embeddings,
            counts_scattered=self._cost.prices_scattered,
        )
        self._replica = Replica(
            self._env,
            self._scheduler,
            self._cost,
            arrivals,
            sequence_factory(
                trace, config.block_size, cache_outputs=config.engine.kind == "sim" and config.engine.cache_outputs
            ),
            self.recorder,
            compress=config.engine.kind == "sim" and config.engine.compress,
            max_lookahead_steps=config.engine.max_lookahead_steps,
        )

    @property
    def device_name(self) -> str:
        return self._config.device.name

    def describe(self) -> str:
        """The KV pool, for the log."""
        return self.pool.describe()

    def run(self) -> None:
        """Simulate to the end, or to the end of the plan in which `stop` was called.

        Raises:
            ConfigError: the device's rates price a step beyond all reason.
        """
        # A run makes no reference cycles, and looking for them among a million requests takes a tenth of its time.
        gc.disable()
        try:
            self._env.run()
        except ImplausibleStepError as error:
            raise ConfigError(f"device={self.device_name}: {error}") from error
        finally:
            gc.enable()

    def stop(self) -> None:
        self._replica.stop()

    def unfinished(self) -> list[Sequence]:
        """Requests that are waiting or running."""
        return self._scheduler.unfinished

    def notes(self) -> list[str]:
        """Where step times are not from measurement: constants fitted for something else and what the profile was not
        measured for, a line each, and one line on steps beyond its ranges."""
        config = self._config
        fitted = calibration.configured(config)
        found = fitted.other_systems(config) if fitted else []
        if not isinstance(self._cost, ProfiledCost):
            return found
        found += differences(self._cost.profile, model_shape(config), device_rates(config), config.block_size)
        if self._cost.prices_scattered and config.engine.kind == "sim" and not config.engine.cache_outputs:
            found.append("the profile prices where KV blocks lie: as in the real engine with engine.cache_outputs=true")
        if outside := self._cost.outside():
            share = max(axis.plans for axis in outside.values()) / self._cost.num_plans
            axes = ", ".join(f"{name} up to {axis.factor:.2g}x" for name, axis in outside.items())
            found.append(f"{share:.1%} of plans or more were priced beyond the profile's ranges: {axes}")
        return found

    def close(self) -> None:
        """Nothing to free."""


def kv_pool(config: RunConfig) -> KVPool:
    """The KV pool of one rank: as configured, or what the device's memory leaves.

    Raises:
        ConfigError: the model does not fit.
    """
    model = model_shape(config)
    if config.num_blocks is not None:
        block_bytes = config.block_size * model.kv_bytes_per_token(config.tensor_parallel_size)
        return KVPool(config.num_blocks, config.block_size, block_bytes)
    try:
        return size_kv_pool(
            model,
            device_rates(config),
            block_size=config.block_size,
            tensor_parallel_size=config.tensor_parallel_size,
            gpu_memory_utilization=config.gpu_memory_utilization,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_seqs=config.max_num_seqs,
        )
    except DeviceTooSmallError as error:
        raise ConfigError(f"device={config.device.name}: {error}") from error


def cost_model(config: RunConfig, constants: Mapping[str, float] | None = None) -> CostModel:
    """The cost model that `config.cost` names, with `constants` in place of those of `cost.calibration`.

    Raises:
        ConfigError: it is not available, or its calibration file cannot be used.
    """
    if constants is None:
        fitted = calibration.configured(config)
        constants = fitted.constants if fitted else {}
    if config.cost.kind == "profiled":
        return _profiled_cost(config, constants)
    if config.cost.kind == "linear":
        values = _defaults(config) | dict(constants)
        return LinearCost(values, pads_prompts=config.scheduler.max_padding is not None)
    fitted_rates: dict[str, Any] = dict(constants)
    device = replace(device_rates(config), **fitted_rates)
    return RooflineCost(model_shape(config), device, config.tensor_parallel_size)


def _profiled_cost(config: RunConfig, constants: Mapping[str, float]) -> ProfiledCost:
    assert config.cost.kind == "profiled"
    name, model, ranks = config.cost.profile, model_shape(config), config.tensor_parallel_size
    values = _defaults(config) | dict(constants)
    try:
        profile = open_profile(name, model, ranks, config.max_num_seqs, device_rates(config))
        cost = ProfiledCost(profile, model, ranks, values, of_means=config.cost.statistic == "mean")
        check_units(profile, model, device_rates(config))
    except ProfileError as error:
        raise ConfigError(f"cost.profile={name!r}: {error}") from None
    return cost


def _defaults(config: RunConfig) -> dict[str, float]:
    return {name: constant.default for name, constant in calibration.constants_of(config).items()}
