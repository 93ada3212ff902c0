"""What all cases share: jobs of run.py in a scratch folder, results that are kept, tables of errors."""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml
from rich.console import Console
from rich.table import Table

from experiments import FIDELITY, PLAIN, RESULTS, provenance, write_result
from harness.results.stored.files import CALIBRATION
from simulator.profile.profile_folder import load_profile

SCRATCH = Path("outputs/fidelity")
FIGURES = ("validation_latency.png", "validation_levels.png", "validation_steps.png")
STATISTICS = ("mean", "median", "p90", "p95", "p99")
LATENCIES = ("ttft", "tpot", "e2el")
_KEPT = ("errors", "levels", "steps", "steps_of_repeats", "calibration")


class Scored(NamedTuple):
    """One validation: its name, its table of errors, and the whole of validation.json."""

    name: str
    errors: pd.DataFrame
    document: dict[str, Any]

    def error(self, metric: str, statistic: str, column: str = "error_pct") -> float:
        found = self.errors[(self.errors["metric"] == metric) & (self.errors["statistic"] == statistic)]
        return float(found[column].iloc[0])


class Lab:
    """Runs tasks of run.py in a scratch folder and keeps the results that the documentation shows."""

    def __init__(self, case: str, keep: bool) -> None:
        self.case, self.scratch = case, SCRATCH / case
        if not keep:
            shutil.rmtree(self.scratch, ignore_errors=True)
        self.figures = FIDELITY / case
        self.scored: list[Scored] = []
        self.figures.mkdir(parents=True, exist_ok=True)
        for figure in self.figures.glob("*.png"):
            figure.unlink()

    def run(self, name: str, *settings: str) -> Path:
        """One job of run.py; returns its folder."""
        folder = self.scratch / name
        command = [sys.executable, "run.py", "progress=false", *PLAIN, *settings, f"hydra.run.dir={folder}"]
        print(name, flush=True)
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(settings)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return folder

    def run_once(self, name: str, result: str, *settings: str) -> Path:
        """The same, unless an earlier job of the name wrote its `result` and was not interrupted."""
        path = self.scratch / name / result
        is_there = path.exists() and json.loads(path.read_text()).get("complete", True)
        return path.parent if is_there else self.run(name, *settings)

    def profile(self, folder: Path, patience_s: float | None, *settings: str) -> None:
        """Profile into `folder`, continuing an earlier call; interrupt the job after `patience_s`.

        Jobs that a shell starts in the background, and their children, ignore interrupts, so the job restores the
        default action of the signal.
        """
        command = [sys.executable, "run.py", "progress=false", "task=profile", *PLAIN, *settings]
        command += [f"profile.out={folder}", f"hydra.run.dir={self.scratch / 'profiling'}"]
        listen = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=listen
        ) as job:
            try:
                printed, _ = job.communicate(timeout=patience_s)
            except subprocess.TimeoutExpired:
                job.send_signal(signal.SIGINT)
                printed, _ = job.communicate()
        if job.returncode not in (0, 130):
            raise SystemExit(f"{' '.join(settings)}\n{printed[-2000:]}")

    def calibrate(self, name: str, *settings: str) -> Path:
        """Fit constants by task=calibrate; the file is kept beside the figures."""
        folder = self.run(name, "task=calibrate", "calibration.max_evaluations=1000", *settings)
        return Path(shutil.copy(folder / CALIBRATION, self.figures / f"{name}.yaml"))

    def scaled(self, constants: Path, factor: float) -> Path:
        """A calibration file with all constants times `factor`."""
        document = yaml.safe_load(constants.read_text())
        document["constants"] = {name: factor * value for name, value in document["constants"].items()}
        path = self.scratch / f"scaled_{factor}.yaml"
        path.write_text(yaml.safe_dump(document))
        return path

    def publish(self, profile: Path) -> None:
        """Put `profile` among those of the repository."""
        from harness.studies.machine_profiling import published_folder  # imported late, as it brings torch

        meta = load_profile(profile).meta
        folder = published_folder(meta.device, meta.model, meta.tensor_parallel_size)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(profile, folder)

    def validate(self, name: str, *settings: str, figures: bool = False) -> Scored:
        folder = self.run(name, "task=validate", f"plots={figures}".lower(), *settings)
        for figure in FIGURES:
            if figures and (folder / figure).exists():
                shutil.copy(folder / figure, self.figures / f"{name}_{figure.removeprefix('validation_')}")
        document = json.loads((folder / "validation.json").read_text())
        scored = Scored(name, pd.read_csv(folder / "errors.csv"), document)
        self.scored.append(scored)
        return scored

    def write(self, **more: Any) -> None:
        record = {**provenance("experiments.fidelity"), **more}
        record["validations"] = {scored.name: {key: scored.document[key] for key in _KEPT} for scored in self.scored}
        write_result(RESULTS / f"fidelity_{self.case}.json", record)


def print_errors(title: str, columns: dict[str, Scored], published: dict[str, dict[str, float]] | None = None) -> None:
    """Errors in percent, a row per latency and statistic, a column per validation."""
    table = Table("", *columns, *(published or {}), box=None, title=title)
    for metric in LATENCIES:
        for statistic in STATISTICS:
            row = [f"{scored.error(metric, statistic):+.2f} %" for scored in columns.values()]
            row += [f"{errors[f'{metric} {statistic}']:+.1f} %" for errors in (published or {}).values()]
            table.add_row(f"{metric.upper()} {statistic}", *row)
    Console().print(table)


def print_noise(title: str, columns: dict[str, Scored]) -> None:
    """The noise floors of latencies in percent."""
    table = Table("", *columns, box=None, title=title)
    for metric in LATENCIES:
        for statistic in ("mean", "p90"):
            row = [f"{scored.error(metric, statistic, 'noise_floor_pct'):.1f} %" for scored in columns.values()]
            table.add_row(f"{metric.upper()} {statistic}", *row)
    Console().print(table)


def print_steps(title: str, columns: dict[str, Scored]) -> None:
    """The errors of single steps in percent."""
    table = Table("", *columns, box=None, title=title)
    for kind in ("decode", "mixed"):
        for name, figure in (("MAPE", "mape_pct"), ("bias", "bias_pct")):
            errors = [scored.document["steps"]["errors"].get(kind, {}) for scored in columns.values()]
            sign = "+" if name == "bias" else ""
            table.add_row(f"{kind} steps, {name}", *(f"{each.get(figure, math.nan):{sign}.1f} %" for each in errors))
    Console().print(table)


def print_decisions(columns: dict[str, Scored]) -> None:
    """Whether replays with measured step times make the measured decisions, in all runs."""
    table = Table("", *columns, box=None)
    same = ("plans_identical", "preemptions_identical", "cache_hits_identical")
    replays = [[scored.document["steps"], *scored.document["steps_of_repeats"]] for scored in columns.values()]
    equal = [all(steps[key] for key in same for steps in each) for each in replays]
    table.add_row("decisions with measured times", *("all equal" if each else "different" for each in equal))
    Console().print(table)
