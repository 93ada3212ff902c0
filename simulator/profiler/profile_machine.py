"""Profiles this machine: puts bench, session and tables together."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from engine.api.step_report import StepReport
from engine.engine_config import EngineConfig
from engine.models.model_config import ModelConfig, ModelError
from engine.runner.cache.kv_cache import OutOfMemoryError
from engine.runner.executors.tensor_parallel import WorkerError
from kernels.attention.backends import BackendUnavailableError
from simulator.models.model import Model
from simulator.profile.meta import ProfileMeta
from simulator.profile.profile import Profile
from simulator.profile.profile_folder import FORMAT_VERSION, save_profile
from simulator.profiler import families
from simulator.profiler.bench import Bench
from simulator.profiler.collectives import CollectiveError
from simulator.profiler.profile_tables import make_profile, noise
from simulator.profiler.samples import Clock, Samples
from simulator.profiler.session import BudgetError, Progress, Session

PARTIAL = "partial.json"
_METHOD = 5  # raised whenever points are measured in another way, as samples of both ways must not be mixed


class ProfilingError(ValueError):
    """The profile cannot be made; the message is one line."""


@dataclass(frozen=True)
class Job:
    """What to profile.

    Attributes:
        engine, model_config: the real engine's own settings.
        weights: folder of the weights, None for random ones.
        shape: the model as the simulator sees it.
        temperature: that requests sample with.
        num_threads: of the CPU, None for as many as torch chooses.
        max_context: longest context, None for what the engine allows.
        time_budget_s: seconds to measure, those of interrupted sessions included.
        repeats: visits to every point that refining the grids leaves time for.
        source: what the profile's metadata says about the machine and the command.
        observe: what a replay does with each step's report.
    """

    engine: EngineConfig
    model_config: ModelConfig
    shape: Model
    weights: Path | None = None
    temperature: float = 0.0
    num_threads: int | None = None
    max_context: int | None = None
    time_budget_s: float = 120.0
    repeats: int = 4
    source: Mapping[str, Any] = field(default_factory=dict)
    observe: Callable[[StepReport], None] = lambda report: None


@dataclass(frozen=True)
class Outcome:
    """A profile that was made.

    Attributes:
        spent_s: seconds spent measuring, those of interrupted sessions included.
        noise: half the interquartile range as a share of the median, at the median of all points.
    """

    profile: Profile
    spent_s: float
    num_points: int
    noise: float


def device_name(device: str, cpu_name: str | None) -> str:
    """The name of the device, as its driver reports it."""
    return str(torch.cuda.get_device_name()) if device == "cuda" else cpu_name or "CPU"


def profile_machine(
    job: Job,
    device: str,
    folder: Path,
    progress: Progress,
    tell: Callable[[str], None],
    clock: Clock = time.perf_counter_ns,
) -> Outcome:
    """Measure and write a profile to `folder`, whole or not at all; resumes an interrupted session.

    Args:
        device: the name of the device.
        tell: gets a line if an earlier session cannot be resumed.
        clock: what the time budget is counted by, and what times a CPU and whole steps.

    Raises:
        ProfilingError: the engine cannot be built, or the time budget is too small.
    """
    if job.num_threads is not None:
        torch.set_num_threads(job.num_threads)
    with _bench(job, clock) as bench:
        samples = Samples.load(folder / PARTIAL, _signature(job, bench, device), tell)
        session = Session(
            bench.measure,
            families.grids(bench.limits),
            families.others(bench.limits),
            samples,
            folder / PARTIAL,
            progress,
            job.repeats,
            clock,
        )
        try:
            session.run(job.time_budget_s)
        except (BudgetError, CollectiveError, WorkerError) as error:
            raise ProfilingError(str(error)) from error
        meta = _meta(job, bench, device, samples)
        profile = make_profile(samples, meta, job.shape, bench.prompts, on_a_line=bench.limits.on_cpu)
        grids = [*session.refined, *session.fixed]
    _write(profile, folder)
    points = [point for grid in grids for point in grid.points()]
    return Outcome(profile, samples.spent_s, len(points), noise(samples, [grid.family for grid in grids]))


@contextmanager
def _bench(job: Job, clock: Clock) -> Iterator[Bench]:
    try:
        bench = Bench(job.engine, job.model_config, job.weights, job.temperature, job.max_context, job.observe, clock)
    except (ModelError, OutOfMemoryError, BackendUnavailableError, WorkerError) as error:
        raise ProfilingError(str(error)) from error
    try:
        yield bench
    finally:
        bench.close()


def _signature(job: Job, bench: Bench, device: str) -> dict[str, Any]:
    """What samples depend on: those of another signature must not be mixed into this profile.

    The number of KV blocks is left out where it follows from free memory: it differs by a few blocks at every start,
    which decides what points fit and not how long they take.
    """
    ignored = ("seed", "gpu_memory_utilization", "num_blocks")
    limits = asdict(bench.limits)
    if job.engine.num_blocks is None:
        del limits["num_blocks"]
    return {
        "format_version": FORMAT_VERSION,
        "method": _METHOD,
        "device": device,
        "shape": asdict(job.shape),
        "engine": {name: value for name, value in asdict(job.engine).items() if name not in ignored},
        "limits": limits,
        "backend": bench.backend_name,
        "num_threads": torch.get_num_threads(),
        "temperature": job.temperature,
    }


def _meta(job: Job, bench: Bench, device: str, samples: Samples) -> ProfileMeta:
    limits = bench.limits
    visits = [samples.visits(point) for point in samples.points("tokens")]
    return ProfileMeta(
        device=device,
        model=job.shape.name,
        tensor_parallel_size=limits.tensor_parallel_size,
        num_layers=job.shape.num_layers,
        calls=bench.calls,
        dtype=job.engine.dtype or job.model_config.dtype,
        block_size=limits.block_size,
        shape=job.shape.sizes,
        token_buckets=limits.token_buckets,
        padded_steps="decode",
        prompt_buckets=limits.prompt_buckets,
        padded_heads=bool(limits.token_buckets),
        batched_prefill=bench.backend_name != "torch",  # which takes one chunk after the other
        planned_ahead=job.engine.async_scheduling,
        source={
            **job.source,
            "driver": _driver(job.engine.device),
            "attention_backend": bench.backend_name,
            "kv_cache_dtype": job.engine.kv_cache_dtype,
            "quantization": job.shape.quantization.name,
            "num_threads": torch.get_num_threads(),
            "temperature": job.temperature,
            "max_model_len": limits.max_model_len,
            "max_lookahead_steps": job.engine.max_lookahead_steps,
            "policy": job.engine.policy,
            "measured_s": round(samples.spent_s, 1),
            "visits": {"least": min(visits), "most": max(visits)},
        },
    )


def _driver(device: str) -> str | None:
    """CUDA's version and the device's compute capability; None on the CPU."""
    if device != "cuda":
        return None
    major, minor = torch.cuda.get_device_capability()
    return f"CUDA {torch.version.cuda}, compute capability {major}.{minor}"


def _write(profile: Profile, folder: Path) -> None:
    """Replace `folder` by this profile; the samples kept there for resuming go with it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".profile-") as temporary:
        fresh, old = Path(temporary) / "new", Path(temporary) / "old"
        save_profile(profile, fresh)
        if folder.exists():
            os.replace(folder, old)
        try:
            os.replace(fresh, folder)
        except OSError:
            with contextlib.suppress(OSError):
                os.replace(old, folder)
            raise
        shutil.rmtree(old, ignore_errors=True)
