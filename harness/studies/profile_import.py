"""task=import: writes a profile that another tool measured, or NVIDIA's operator times, as a folder of ours."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from harness.config import RunConfig
from harness.engines.resolving.system import resolve
from harness.figures import write_charts
from harness.figures.charts.profile import profile_chart
from harness.results.terminal import print_line
from simulator.profile.profile_folder import save_profile


def import_profile(config: RunConfig, output_dir: Path) -> None:
    """Write the profile of `cost.profile` to `<folder>/tp<ranks>`, by default in the folder of the run.

    Raises:
        ConfigError: the profile cannot be read, or is of another model.
    """
    console = Console()
    profile = resolve(config).profile
    assert profile is not None, "the configuration has a profile"
    out = Path(config.profile.out) if config.profile.out else output_dir / "profile"
    save_profile(profile, out / f"tp{config.tensor_parallel_size}")
    if config.plots:
        write_charts({"profile": profile_chart(profile)}, output_dir, config.plot)
    source = ", ".join(f"{name}: {value}" for name, value in profile.meta.source.items())
    rows = ", ".join(f"{len(table)} {name}" for name, table in profile.tables.items())
    for line in (
        f"profile of {profile.meta.model} on {config.tensor_parallel_size} x {profile.meta.device}; rows: {rows}",
        f"from {source}",
        f"use it with: cost=profiled cost.profile={out}",
    ):
        print_line(console, line)
