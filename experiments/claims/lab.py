"""Runs of the claims: simulations of a GPU, and a tiny model in the real engine beside its simulation."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from experiments import composed
from harness.jobs import execute
from harness.results.stored.files import read_results

H100 = ("model=qwen3-8b", "device=h100-80gb", "max_num_seqs=256")
TINY = ("model=tiny", "device=laptop-cpu", "max_num_seqs=32", "max_num_batched_tokens=512", "max_model_len=1024")
PROFILE = "simulator/profiles/intel-xeon-processor/tiny/tp1"
BACKLOG = ("trace=sharegpt", "arrival=all_at_once")
TINY_TRAFFIC = (
    "trace=synthetic", "trace/lengths@trace.prompt=lognormal", "trace.prompt.mean=80", "trace.prompt.max=400",
    "trace/lengths@trace.output=lognormal", "trace.output.mean=60", "trace.output.max=300",
)  # fmt: skip


class Outcome(NamedTuple):
    """Summary and tables of one run."""

    summary: dict[str, Any]
    requests: pd.DataFrame
    steps: pd.DataFrame


class Lab:
    """Runs tasks of `run.py` in this process; the folders of the runs lie in `scratch`."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self._num_runs = 0

    def simulate(self, *overrides: str) -> Outcome:
        """A simulation of Qwen3-8B on an H100, unless `overrides` say otherwise."""
        return self._run(*H100, *overrides)

    def serve(self, *overrides: str) -> Outcome:
        """The tiny model in the real engine, on this machine's CPU."""
        return self._run("engine=cpu", *TINY, *overrides)

    def predict(self, *overrides: str) -> Outcome:
        """The simulation of `serve`, priced by a profile of such a CPU unless `overrides` say otherwise."""
        cost = () if any(each.startswith("cost=") for each in overrides) else (f"cost.profile={PROFILE}",)
        return self._run(*TINY, *cost, *overrides)

    def _run(self, *overrides: str) -> Outcome:
        self._num_runs += 1
        folder = self.scratch / str(self._num_runs)
        folder.mkdir()
        silent = io.StringIO()
        with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
            execute(composed("plots=false", "progress=false", *overrides), folder)
        result, summary = read_results(folder)
        return Outcome(summary, result.requests, result.steps)
