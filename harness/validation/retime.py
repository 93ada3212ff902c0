"""task=retime: executes the steps of a measured run again, exactly as they were planned, and times each of them.

The time of the same step varies from execution to execution, on a shared machine by 10 % and more. No cost model can
predict that variation, so `task=validate` compares it with the median of all executions (`validation.retimed`). The run
is served again on its own clock: requests reach the engine at the measured times, and the scheduler is told that each
step took its measured time. The scheduler then makes the same plans, which is checked.

<folder>/step_times.parquet   repeat, step, duration (s)
         retimed.json         the run that was executed again; written last
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import track

from harness.config import RunConfig
from harness.engines.availability import check_engine
from harness.errors import MeasuredRunError
from harness.measured import MeasuredRun, load_measured
from harness.measured.measured_run import whole_ns
from harness.results.stored.environment import command_line, environment
from harness.results.stored.files import RETIMED, STEP_TIMES, write_whole
from harness.results.tables import Floats
from harness.results.terminal import print_line
from harness.validation.step_errors import as_delivered, deviations, first_difference
from harness.workload.arrivals import OpenLoop


def retime(config: RunConfig, output_dir: Path) -> dict[str, Any]:
    """Execute the steps of `validation.measured` `retiming.repeats` times; returns the content of retimed.json.

    The engine has the configuration of the measured run; the model is loaded anew for every repeat. Prompts have the
    lengths and shared prefixes of the measured ones; their token ids may differ.

    Raises:
        TwinServeError: the run is of another engine or device, or the plans differ from the measured ones.
        KeyboardInterrupt: interrupted; the finished repeats have been written.
    """
    console = Console()
    assert config.validation.measured is not None, "the configuration refuses that"
    run = load_measured(config.validation.measured)
    if run.own is None:
        raise MeasuredRunError(f"{run.source}: only runs of this project's own engine can be executed again")
    check_engine(run.own.config.engine.kind)
    is_shown = config.progress and console.is_terminal
    times: list[Floats] = []
    try:
        for _ in track(range(config.retiming.repeats), "executing", console=console, disable=not is_shown):
            times.append(_execute(run))
    except KeyboardInterrupt:
        if times:
            _write(run, np.stack(times), output_dir)
        raise
    executed = np.stack(times)
    document = _write(run, executed, output_dir)
    _report(console, run, document, executed, output_dir)
    return document


def _execute(run: MeasuredRun) -> Floats:
    """Execute each step once more; returns their times in s."""
    from harness.engines.real import RealEngine, resolve_real  # imported late, as it brings torch

    assert run.own is not None
    measured, device = run.own.result.steps, run.own.result.meta.get("device")
    trace, delivered_ns = as_delivered(run)
    config = run.own.config.model_copy(update={"num_blocks": run.own.result.num_blocks})
    engine = RealEngine(resolve_real(config), trace, OpenLoop(delivered_ns))
    try:
        if engine.device_name != device:
            raise MeasuredRunError(f"{run.source}: measured on {device}, this is {engine.device_name}")
        times_ns = engine.run_paced(whole_ns(measured["duration"]).tolist())
        unfinished = engine.unfinished()
        recorded = engine.record.tables(trace, unfinished)
    finally:
        engine.close()
    different = first_difference(measured, recorded.steps)
    if different is not None or any(unfinished):
        raise MeasuredRunError(
            f"{run.source}: step {len(measured) if different is None else different:,} of {len(measured):,} is planned "
            "otherwise than in the measured run; it can only be executed again as it was configured"
        )
    return np.array(times_ns) * 1e-9


def _write(run: MeasuredRun, times: Floats, folder: Path) -> dict[str, Any]:
    assert run.own is not None
    measured_in, here = run.own.result.meta.get("environment", {}), environment()
    document = {
        "measured": {"kind": run.kind, "source": run.source, "data_sha256": run.data_sha256()},
        "repeats": len(times),
        "num_steps": times.shape[1],
        "device": run.own.result.meta.get("device"),
        "differs": {
            name: [measured_in.get(name), value] for name, value in here.items() if measured_in.get(name) != value
        },
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command_line(),
        "environment": here,
    }
    repeat, step = np.indices(times.shape)
    table = pd.DataFrame({"repeat": repeat.ravel(), "step": step.ravel(), "duration": times.ravel()})
    write_whole(folder / STEP_TIMES, lambda path: table.to_parquet(path, index=False))
    text = json.dumps(document, indent=2) + "\n"
    write_whole(folder / RETIMED, lambda path: path.write_text(text, encoding="utf-8"))
    return document


def _report(console: Console, run: MeasuredRun, document: Mapping[str, Any], times: Floats, folder: Path) -> None:
    assert run.own is not None
    executions = replace(run.own, retimed=times).executions()
    single, halves = (100 * each.mean() for each in deviations(executions))
    lines = [
        f"{times.shape[1]:,} steps executed {len(times)} times more, all as planned in {run.source}",
        f"a single execution is {single:.1f} % from the median of all {len(executions)}, half of them {halves:.1f} % "
        "from the other half",
        *(f"! {name} is {now}, in the measured run it was {then}" for name, (then, now) in document["differs"].items()),
        f"use it with: task=validate validation.measured=run:{run.source} validation.retimed=[{folder}]",
    ]
    for line in lines:
        print_line(console, line)
