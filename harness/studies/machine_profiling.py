"""task=profile: measures a profile of this machine for `cost=profiled`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from engine.models.model_config import ModelError
from harness.config import RunConfig
from harness.engines.real import Setup, resolve_real
from harness.engines.resolving.system import model_shape
from harness.errors import ConfigError
from harness.figures import write_charts
from harness.figures.charts.profile import profile_chart
from harness.record.recorder import Recorder
from harness.results.stored.environment import command_line, cpu_model, environment, slug
from harness.results.terminal import print_line
from simulator.profile.checks import check_fits, kv_dtype_of
from simulator.profile.profile import ProfileError
from simulator.profile.profile_folder import load_profile
from simulator.profiler.profile_machine import PARTIAL, Job, Outcome, ProfilingError, device_name, profile_machine

PROFILES = Path(__file__).resolve().parents[2] / "simulator" / "profiles"
_SOFTWARE = ("python", "torch", "twinserve", "git_revision", "git_dirty", "platform", "transparent_hugepage")


def profile(config: RunConfig, output_dir: Path) -> None:
    """Measure a profile and say where it is; an interrupted session is taken up again by the same command.

    Raises:
        ConfigError: the engine cannot be built, the time budget is too small, or another profile is in the way.
        KeyboardInterrupt: what was measured until then is kept.
    """
    console = Console()
    setup = resolve_real(config)
    try:
        device = device_name(setup.engine.device, cpu_model())
        folder = profile_folder(config, device)
        _check_overwrite(config, folder)
        with _bar(config.profile.time_budget_s, config.progress, console) as show:
            outcome = profile_machine(_job(config, setup), device, folder, show, lambda line: print_line(console, line))
    except (ModelError, ProfilingError) as error:
        raise ConfigError(f"task=profile: {error}") from error
    except KeyboardInterrupt:
        console.print(f"interrupted; the same command goes on with what is in {folder / PARTIAL}", soft_wrap=True)
        raise
    if config.plots:
        write_charts({"profile": profile_chart(outcome.profile)}, output_dir, config.plot)
    _report(outcome, folder, console)


def profile_folder(config: RunConfig, device: str) -> Path:
    """Where the profile goes: as configured, or `<device>/<model>/tp<ranks>` among the profiles of this repository."""
    if config.profile.out is not None:
        return Path(config.profile.out)
    return published_folder(device, config.model.name, config.tensor_parallel_size)


def published_folder(device: str, model: str, num_ranks: int) -> Path:
    """Where a profile is among those of this repository."""
    return PROFILES / slug(device) / slug(model.rpartition("/")[2]) / f"tp{num_ranks}"


def _job(config: RunConfig, setup: Setup) -> Job:
    known = environment()
    return Job(
        engine=setup.engine if setup.engine.device == "cuda" else replace(setup.engine, async_scheduling=False),
        model_config=setup.model,
        shape=model_shape(config.model, config.weight_format, setup.engine.kv_cache_dtype),
        weights=setup.weights,
        temperature=setup.temperature,
        num_threads=setup.num_threads,
        max_context=config.profile.max_context,
        time_budget_s=config.profile.time_budget_s,
        repeats=config.profile.repeats,
        source={
            "command": command_line(),
            "date": datetime.now(UTC).date().isoformat(),
            "software": {name: known[name] for name in _SOFTWARE},
        },
        observe=Recorder().on_report,
    )


def _check_overwrite(config: RunConfig, folder: Path) -> None:
    """Whether what is in the folder may be replaced; raises ConfigError where it may not."""
    if (
        config.profile.overwrite
        or not folder.is_dir()
        or {path.stem for path in folder.iterdir()} <= {Path(PARTIAL).stem}
    ):
        return
    try:
        shape = model_shape(config.model, config.weight_format, config.engine.kv_cache_dtype)
        profile = load_profile(folder)
        check_fits(profile, shape, config.tensor_parallel_size)
        if (kv_dtype := kv_dtype_of(profile)) != shape.kv_dtype:
            raise ProfileError(f"profiled with engine.kv_cache_dtype={kv_dtype}")
    except ProfileError as error:
        raise ConfigError(
            f"profile.out={str(folder)!r}: holds another profile ({error}); choose another folder or "
            "profile.overwrite=true"
        ) from error


@contextmanager
def _bar(budget_s: float, enabled: bool, console: Console) -> Iterator[Callable[[float, str], None]]:
    """A bar of the time spent, what is being done, and the time left."""
    if not enabled or not console.is_terminal:
        yield lambda spent_s, doing: None
        return
    columns = (TextColumn("profiling"), BarColumn(bar_width=None), TextColumn("{task.fields[doing]}"))
    with Progress(*columns, TimeRemainingColumn(elapsed_when_finished=True), console=console) as progress:
        task = progress.add_task("", total=budget_s, doing="loading the model")
        yield lambda spent_s, doing: progress.update(task, completed=spent_s, doing=doing)


def _report(outcome: Outcome, folder: Path, console: Console) -> None:
    meta, tables = outcome.profile.meta, outcome.profile.tables
    rows = ", ".join(f"{len(table)} {name}" for name, table in tables.items())
    lines = [
        f"profile of {meta.model} on {meta.device}, {meta.tensor_parallel_size} rank(s), block size {meta.block_size}",
        f"{outcome.num_points} points in {outcome.spent_s:,.0f} s; rows: {rows}",
        f"noise: half the interquartile range is {outcome.noise:.1%} of the median at half of the points",
        f"the mean of decode steps is {meta.mean_over_median:.3f} times their median; simulations take the mean "
        "(with cost.statistic=median the median, which other processes disturb less)",
        *(f"not measured: {hole}, which do not fit" for hole in outcome.profile.holes()),
        f"use it with: cost=profiled cost.profile={folder}",
    ]
    for line in lines:
        print_line(console, line)
