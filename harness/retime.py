"""task=retime: executes the steps of a measured run again, exactly as they were planned, and times each once more.

A single step takes a different time whenever it is executed, on a shared machine by a tenth and more. No cost model can
know that, so `task=validate` scores it against the median of all executions (`validation.retimed`). The run is served
again on its own clock: requests reach the engine at the measured times and the scheduler is told that each step took as
long as it did then. So it decides the same, which is checked.

<folder>/step_times.parquet   repeat, step, duration (s)
         retimed.json         which run; written last
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import track

from harness.arrivals import OpenLoop
from harness.cli import check_engine
from harness.config import RunConfig
from harness.errors import MeasuredRunError
from harness.measured import MeasuredRun, load_measured
from harness.metrics import Floats
from harness.results import RETIMED, STEP_TIMES, command_line, environment, write_whole
from harness.validate_steps import as_delivered, deviations, first_difference, whole_ns


def retime(config: RunConfig, output_dir: Path) -> dict[str, Any]:
    """Execute the steps of `validation.measured` as often as `retiming.repeats` says; returns what retimed.json holds.

    The measured run's own configuration decides how; its model is loaded anew for every repeat.

    Raises:
        TwinServeError: the run is none of our own engine, cannot be loaded here, or is planned otherwise now.
    """
    console = Console()
    assert config.validation.measured is not None, "the configuration refuses that"
    run = load_measured(config.validation.measured)
    if run.own is None:
        raise MeasuredRunError(f"{run.source}: only runs of this project's own engine can be executed again")
    check_engine(run.own.config.engine.kind)
    repeats = range(config.retiming.repeats)
    shown = track(repeats, "executing", console=console, disable=not (config.progress and console.is_terminal))
    times = np.stack([_execute(run) for _ in shown])
    document = {
        "measured": {"kind": run.kind, "source": run.source, "data_sha256": run.data_sha256()},
        "repeats": len(times),
        "num_steps": times.shape[1],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command_line(),
        "environment": environment(),
    }
    repeat, step = np.indices(times.shape)
    table = pd.DataFrame({"repeat": repeat.ravel(), "step": step.ravel(), "duration": times.ravel()})
    write_whole(output_dir / STEP_TIMES, lambda path: table.to_parquet(path, index=False))
    text = json.dumps(document, indent=2) + "\n"
    write_whole(output_dir / RETIMED, lambda path: path.write_text(text, encoding="utf-8"))
    _report(console, run, times, output_dir)
    return document


def _execute(run: MeasuredRun) -> Floats:
    """The times in s of one more execution of each step."""
    from harness.real import RealEngine  # imported late, as they bring torch
    from harness.replay import PacedReplay

    assert run.own is not None
    measured = run.own.result.steps
    trace, delivered_ns = as_delivered(run)
    config = run.own.config.model_copy(update={"num_blocks": run.own.result.num_blocks})
    engine = RealEngine(config, trace, OpenLoop(delivered_ns), whole_ns(measured["duration"]).tolist())
    try:
        engine.run()
        recorded = engine.recorder.tables(trace, engine.unfinished())
    finally:
        engine.close()
    different = first_difference(measured, recorded.steps)
    if different is not None:
        raise MeasuredRunError(
            f"{run.source}: step {different:,} of {len(measured):,} is planned otherwise than in the measured run; it "
            "can only be executed again with the code and the configuration that it was measured with"
        )
    assert isinstance(engine.replay, PacedReplay)
    return np.array(engine.replay.measured_ns) * 1e-9


def _report(console: Console, run: MeasuredRun, times: Floats, folder: Path) -> None:
    assert run.own is not None
    executions = np.vstack([run.own.result.steps["duration"].to_numpy(), times])
    single, halves = (100 * each.mean() for each in deviations(executions))
    lines = (
        f"{times.shape[1]:,} steps executed {len(times)} times more, all as planned in {run.source}",
        f"a single execution is {single:.1f} % from the median of all {len(executions)}, half of them {halves:.1f} % "
        "from the other half",
        f"use it with: task=validate validation.measured=run:{run.source} validation.retimed=[{folder}]",
    )
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)
