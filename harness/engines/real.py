"""The real engine of a configuration, with a replay in front of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from engine.api.llm_engine import LLMEngine
from engine.core.routing.router import Router
from engine.core.sequence import Request
from engine.engine_config import EngineConfig, ExecutionOptions, Quantized
from engine.json_file import read_json
from engine.models.model_config import ModelConfig, ModelError
from engine.prompt_lookup import NgramOptions
from engine.runner.cache.kv_cache import GIB, OutOfMemoryError
from engine.runner.executors.tensor_parallel import WorkerError, make_executor
from engine.sampling_params import SamplingParams
from harness.config import CpuEngine, GpuEngine, RunConfig
from harness.config import ModelConfig as ConfiguredModel
from harness.config.huggingface.configs import sizes_of
from harness.engines.real_fleet import FleetReplay
from harness.engines.real_replay import Intake, Replay
from harness.engines.resolving.system import contiguous_rule, model_shape
from harness.errors import ConfigError, EngineError
from harness.record.record import Record
from harness.record.recorder import Recorder
from harness.results.stored.environment import cpu_model, cpu_with_threads
from harness.workload.token_ids import PromptSource
from harness.workload.trace import Trace
from kernels.attention.backends import BackendUnavailableError
from simulator.arrivals import Arrivals
from simulator.models.model import Model

_WEIGHT_SHARE = 0.8  # of the free memory; the rest is for activations and the KV cache
# Prompt lengths of the warm-up requests, group by group: each tile of prefill attention, and a decode beside a prompt.
_WARM_UP_TOKENS = ((10,), (20,), (50,), (5, 300))


@dataclass(frozen=True)
class Setup:
    """What a configuration says about the real engine, in the types that the engine takes.

    Attributes:
        weights: the model's folder, None for random weights.
        num_threads: of the CPU, None for all cores.
        num_servers: engines, each with a model of its own.
        rule: chooses the engine of a request; None for one.
    """

    model: ModelConfig
    engine: EngineConfig
    weights: Path | None
    temperature: float
    warm_up: bool
    num_threads: int | None
    num_servers: int = 1
    rule: Router | None = None

    def use_threads(self) -> None:
        """Compute with so many threads from now on."""
        if self.num_threads is not None:
            torch.set_num_threads(self.num_threads)


class RealEngine:
    """A model loaded and ready to serve `trace`, once; the record fills meanwhile.

    Raises:
        ConfigError: the model cannot be loaded or does not fit, or a backend is not available.
        EngineError: the engine failed in the warm-up.
    """

    def __init__(self, setup: Setup, trace: Trace, arrivals: Arrivals) -> None:
        setup.use_threads()
        try:
            executors = [make_executor(setup.engine, setup.model, setup.weights) for _ in range(setup.num_servers)]
        except (ModelError, OutOfMemoryError, BackendUnavailableError, WorkerError) as error:
            raise ConfigError(f"{_name(setup.engine)}: {error}") from error
        self._executor = executors[0]
        self.num_blocks = self._executor.num_blocks
        self.pool_blocks = [self.num_blocks]
        self.meta: Mapping[str, Any] = {}
        self.block_bytes = self._executor.block_bytes * setup.engine.tensor_parallel_size
        self._block_formula = "2·layers·block_size·kv_heads/TP·(head_dim·bytes + scale)"
        if setup.model.latent is not None:
            self._block_formula = "layers·block_size·(kv_lora_rank + qk_rope_head_dim)·bytes"
        assert setup.engine.max_model_len is not None
        length = setup.engine.max_model_len
        self._engines = [LLMEngine(setup.engine, executor, max_model_len=length) for executor in executors]
        recorders = [Recorder(reserves=setup.engine.contiguous is not None) for _ in executors]
        self.record = Record(recorders)
        if setup.warm_up:
            with self._failures():
                for engine in self._engines:
                    _warm_up(engine, 3, setup.temperature)

        def params(max_tokens: int) -> SamplingParams:
            return SamplingParams(max_tokens=max_tokens, temperature=setup.temperature, ignore_eos=True)

        prompts = PromptSource(trace, setup.model.vocab_size, setup.engine.seed, setup.engine.max_model_len)
        self._intakes = [
            Intake(engine, prompts, recorder, params) for engine, recorder in zip(self._engines, recorders, strict=True)
        ]
        self._replay: Replay | FleetReplay = (
            Replay(self._intakes[0], arrivals)
            if setup.rule is None
            else FleetReplay(self._intakes, arrivals, setup.rule)
        )

    @property
    def device_name(self) -> str:
        if self._engines[0].config.device == "cuda":
            return torch.cuda.get_device_name()
        return cpu_with_threads(cpu_model(), torch.get_num_threads())

    def step_times_from(self) -> str:
        """Where the times of steps come from, in one line."""
        return "step times: measured"

    def cost_model_text(self, load: str) -> str:
        """No cost model prices the steps of a real engine."""
        return "measured"

    def describe(self) -> str:
        """The KV pool and the attention backend, for the log."""
        size, each = self._engines[0].config.block_size, self._executor.block_bytes
        return (
            f"KV pool: {self.num_blocks:,} blocks x {size} tokens = {self.num_blocks * size:,} tokens, "
            f"{self.num_blocks * each / GIB:.2f} GiB; {each:,} bytes per block = {self._block_formula}; "
            f"attention backend {self._executor.backend_name}"
        )

    def run(self) -> None:
        """Serve the trace in real time, to its end or until `stop` is called; raises EngineError."""
        with self._failures():
            self._replay.run()

    def stop(self) -> None:
        self._replay.stop()

    def unfinished(self) -> list[list[Request]]:
        """Requests that were waiting or running when the engine stopped or failed."""
        return [list(intake.unfinished.values()) for intake in self._intakes]

    def notes(self) -> list[str]:
        """Nothing: all of it was measured."""
        return []

    def close(self) -> None:
        """Free the models' memory."""
        for engine in self._engines:
            engine.close()

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Close the engine and raise EngineError if it fails. The executor's errors and torch's are RuntimeErrors."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            self.close()
            text = " ".join(str(error).split()) or type(error).__name__
            raise EngineError(f"{_name(self._engines[0].config)}: {text}") from error


def _warm_up(engine: LLMEngine, max_tokens: int, temperature: float) -> None:
    """Run each kind of step once, uncounted, and forget it: no later request finds its blocks. The requests of a group
    come one step after the other."""
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, ignore_eos=True)
    longest = engine.max_model_len - max_tokens
    if not engine.config.enable_chunked_prefill:
        longest = min(longest, engine.config.max_num_batched_tokens)
    for lengths in _WARM_UP_TOKENS:
        for i, length in enumerate(lengths):
            length = min(length, longest - i)
            engine.add(Request(-1 - i, length, max_tokens, token_ids=[1] * length), params)
            engine.step(0)
        while engine.step(0):
            pass
        engine.reset()


def resolve_real(config: RunConfig) -> Setup:
    """What `config` says about the real engine.

    Raises:
        ConfigError: the model's folder cannot be used, it has other sizes than the configured model, or random weights
            of that model do not fit into this machine's memory.
    """
    settings = config.engine
    assert isinstance(settings, CpuEngine | GpuEngine)
    engine = EngineConfig(
        device="cuda" if settings.kind == "gpu" else "cpu",
        dtype=config.model.dtype,
        quantization=_weight_format(config),
        block_size=config.block_size,
        num_blocks=config.num_blocks,
        gpu_memory_utilization=config.gpu_memory_utilization,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        load_format="auto" if settings.weights else "random",
        tensor_parallel_size=config.tensor_parallel_size,
        seed=config.seed,
        speculation=_speculation(config),
        contiguous=contiguous_rule(config),
        host_kv_gib=config.tiers.host.gib,
        offload=config.tiers.offload,
        overlap=config.tiers.overlap,
        host_eviction=config.tiers.host.eviction,
        host_gb_per_s=config.tiers.host.gb_per_s,
        **config.scheduler.model_dump(),
        **{field.name: getattr(settings, field.name) for field in fields(ExecutionOptions)},
    )
    try:
        model = _model(config, settings)
    except ModelError as error:
        raise ConfigError(f"{_name(engine)}: {error}") from error
    return Setup(
        model=model,
        engine=replace(engine, max_model_len=config.max_model_len or model.max_position_embeddings),
        weights=Path(settings.weights) if settings.weights else None,
        temperature=settings.temperature,
        warm_up=settings.warm_up,
        num_threads=settings.num_threads,
        num_servers=config.replicas,
        rule=config.router.make() if config.replicas > 1 else None,
    )


def _speculation(config: RunConfig) -> NgramOptions | None:
    if config.speculation.kind != "ngram":
        return None
    return NgramOptions(**{field.name: getattr(config.speculation, field.name) for field in fields(NgramOptions)})


def _weight_format(config: RunConfig) -> Quantized:
    name = config.weight_format
    assert name == "none" or name == "fp8" or name == "fp8_block", "the configuration refuses other formats"
    return name


def _name(engine: EngineConfig) -> str:
    return "engine=gpu" if engine.device == "cuda" else "engine=cpu"


def _model(config: RunConfig, settings: CpuEngine | GpuEngine) -> ModelConfig:
    if settings.weights:
        model = ModelConfig.load(settings.weights)
        _check_sizes(config.model, settings.weights, model)
        return model
    if settings.kind == "cpu":
        # On the CPU, float8 weights are kept in the model's dtype.
        _check_memory(model_shape(config.model, "none", settings.kv_cache_dtype))
    return ModelConfig.from_shape(config.model.model_dump())


# Values of a key that only simulated models have otherwise.
_SIMULATED_ONLY = {"learned_positions": 0}
# Keys in which a folder of the same sizes may differ.
_NO_SIZES = {
    "name", "dtype", "quantization", "part_formats", "blocks", "kv_cache_dtype", "ignored_keys",
    "extra_layer_parameters", "tower_parameters",
}  # fmt: skip


def _check_sizes(configured: ConfiguredModel, folder: str, model: ModelConfig) -> None:
    """Refuse weights of other sizes than the configured model, which results are labelled and simulated as."""
    ours = configured.model_dump(exclude=_NO_SIZES)
    known = {name: getattr(model, name) for name in ours if name not in _SIMULATED_ONLY} | _SIMULATED_ONLY
    if configured.blocks:
        found = ConfiguredModel(name=configured.name, **sizes_of(read_json(Path(folder) / "config.json")))
        ours, known = (each.model_dump(exclude=_NO_SIZES - {"blocks"}) for each in (configured, found))
    theirs = {name: value for name, value in known.items() if value != ours[name]}
    if theirs:
        what = ", ".join(f"{name} is {value} and not {ours[name]}" for name, value in theirs.items())
        settings = " ".join(f"model.{name}={str(value).lower()}" for name, value in theirs.items())
        raise ConfigError(
            f"engine.weights={folder!r}: of other sizes than {configured.name}: {what}; choose the model= that it is "
            f"or set model.name=... {settings}"
        )


def _check_memory(model: Model) -> None:
    """Refuse weights that would drive the machine out of memory; raises ConfigError."""
    needed = model.weight_bytes()
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > _WEIGHT_SHARE * free:
        raise ConfigError(
            f"engine=cpu: the weights of {model.name} take {needed / GIB:.1f} GiB and only {free / GIB:.1f} GiB "
            "of memory are free; choose a smaller model, such as model=tiny"
        )
