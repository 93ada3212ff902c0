"""The simulated engine, put together from a configuration: scheduling core, cost model and SimPy replica."""

from __future__ import annotations

import gc

import simpy

from engine.block_manager import BlockManager
from engine.policy import POLICIES
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from harness.arrivals import ArrivalProcess
from harness.config import RunConfig
from harness.content import sequence_factory
from harness.errors import ConfigError
from harness.recorder import Recorder
from harness.trace import Trace
from simulator.cost import CostModel
from simulator.hardware import Device, DeviceTooSmallError, KVPool, ModelShape, size_kv_pool
from simulator.replica import ImplausibleStepError, Replica
from simulator.roofline import RooflineCost


class SimulatedEngine:
    """A run of `trace` set up and ready to go; the recorder fills while `run` runs.

    Raises:
        ConfigError: the model does not fit on the device, or the cost model is not available.
    """

    def __init__(self, config: RunConfig, trace: Trace, arrivals: ArrivalProcess) -> None:
        self.recorder = Recorder()
        self._device_name = config.device.name
        self.pool = kv_pool(config)
        self.num_blocks = self.pool.num_blocks
        self._env = simpy.Environment(initial_time=0)
        caching = config.scheduler.enable_prefix_caching
        self._scheduler = Scheduler(
            BlockManager(self.num_blocks, config.block_size, enable_prefix_caching=caching),
            POLICIES[config.scheduler.policy](),
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=config.max_model_len or config.model.max_position_embeddings,
            watermark=config.scheduler.watermark,
        )
        self._replica = Replica(
            self._env,
            self._scheduler,
            cost_model(config),
            arrivals,
            sequence_factory(trace, config.block_size),
            self.recorder,
            compress=config.engine.kind == "sim" and config.engine.compress,
        )

    @property
    def device_name(self) -> str:
        return self._device_name

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
            raise ConfigError(f"device={self._device_name}: {error}") from error
        finally:
            gc.enable()

    def stop(self) -> None:
        self._replica.stop()

    def unfinished(self) -> list[Sequence]:
        """Requests that are waiting or running."""
        return self._scheduler.unfinished

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
            Device(**config.device.model_dump()),
            block_size=config.block_size,
            tensor_parallel_size=config.tensor_parallel_size,
            gpu_memory_utilization=config.gpu_memory_utilization,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_seqs=config.max_num_seqs,
        )
    except DeviceTooSmallError as error:
        raise ConfigError(f"device={config.device.name}: {error}") from error


def cost_model(config: RunConfig) -> CostModel:
    """The cost model that `config.cost` names.

    Raises:
        ConfigError: it is not available.
    """
    if config.cost.kind == "profiled":
        raise ConfigError("cost=profiled: no profile format is supported yet; use cost=roofline")
    device = Device(**config.device.model_dump())
    return RooflineCost(model_shape(config), device, config.tensor_parallel_size)


def model_shape(config: RunConfig) -> ModelShape:
    """The model of a configuration as the simulator sees it."""
    fields = config.model.model_dump() | {"dtype_bytes": config.model.dtype_bytes}
    return ModelShape(**fields | {"dtype": "fp32" if config.model.dtype == "float32" else "bf16"})
