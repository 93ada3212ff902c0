"""One workload in three worlds: a simulation, the same system as a server in real time, our real engine as a server.

Whether a client sees what the server records, and whether a simulated server is as fast as its simulation. Server and
client are processes of their own; on a machine with other work their times are later.

    python -m experiments.three_worlds

Then the real engine's server is observed by task=observe, with the profile of another machine, and a load that nothing
was fitted to is predicted; the errors are in experiments/results/three_worlds.json. Server and client have a core each
there, as what a client takes from its server's core is nothing of the server.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from experiments import PLAIN, RESULTS, ROOT, composed, provenance, write_result
from harness import run
from harness.calibration.observe import observe

SIMULATED = ("engine=sim", "model=qwen3-8b", "device=h100-80gb")  # with the scheduler and the front end of vLLM
REAL = (
    "engine=cpu", "engine.num_threads=1", *PLAIN, "model=tiny", "device=laptop-cpu", "max_num_batched_tokens=512",
    "max_num_seqs=16",
)  # fmt: skip
ELSEWHERE = "cost.profile=simulator/profiles/intel-xeon-processor/tiny"
WORKLOAD = (
    "trace=synthetic", "trace/lengths@trace.prompt=uniform", "trace.prompt.low=20", "trace.prompt.high=400",
    "trace/lengths@trace.output=uniform", "trace.output.low=10", "trace.output.high=60",
)  # fmt: skip
LONG = (
    "trace=synthetic", "trace/lengths@trace.prompt=uniform", "trace.prompt.low=1000", "trace.prompt.high=4000"
)  # fmt: skip
OBSERVED = ("observe.time_s=600", "observe.loads=[0.1,0.25,0.45]", "observe.held_out_load=0.35")  # see `observed`
TRACES = {
    "simulated": (*LONG, "trace.num_requests=300", "arrival.rate=6"),
    "real": ("trace.num_requests=60", "arrival.rate=3"),
}


@contextmanager
def server(folder: Path, *overrides: str) -> Iterator[str]:
    """The address of a server in a process of its own; it has written its tables to `folder` when the block ends."""
    command = [sys.executable, "run.py", "task=serve", "serve.port=0", "serve.record=true", "plots=false"]
    process = subprocess.Popen(
        [*command, f"hydra.run.dir={folder}", *overrides], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://\S+", line)
    assert found, f"the server says: {line}"
    try:
        yield found[0]
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def on_core(number: int) -> Iterator[None]:
    """This thread, and what it starts meanwhile, has one core; all of them as before where there is one only."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def seen_and_recorded(folder: Path, system: Sequence[str], trace: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The requests of a trace as the client sees them, without its own lateness, and as the server recorded them."""
    with server(folder, *system) as address:
        model = [each for each in system if each.startswith("model=")]
        seen = run("engine=openai", f"engine.endpoint={address}", *model, *trace).requests
    seen["ttft"] -= seen["replay_lag"]
    return seen, pd.read_parquet(folder / "requests.parquet")


def observed(folder: Path) -> dict[str, Any]:
    """The errors in percent of the loads of task=observe, how much the server itself varied, and the constants.

    The loads are lower than those of task=observe where nothing is said: at more than half of what this server can
    serve, p90 of TTFT is a queue of the moments at which a shared machine is slow, and varies by its own size.
    """
    with ExitStack() as servers:
        with on_core(0):
            address = servers.enter_context(server(folder / "server", *REAL))
        client = ("engine=openai", f"engine.endpoint={address}", *REAL[2:], *WORKLOAD, ELSEWHERE)
        config = composed("task=observe", *OBSERVED, *client)
        with on_core(1):
            held_out = observe(config, folder)
    fit = yaml.safe_load((folder / "calibration.yaml").read_text())
    errors = {f"{row['metric']} {row['statistic']}": row for row in held_out["errors"]}
    before, after = (fit["objective"][key] for key in ("errors_before", "errors_after"))
    rows = [
        {"statistic": name, "before_pct": 100 * before[name], "fitted_pct": 100 * after[name],
         "held_out_pct": errors[name]["error_pct"], "noise_pct": errors[name]["noise_floor_pct"]}
        for name in before
    ]  # fmt: skip
    slices = held_out["slices"]
    requests = held_out["measured"]["num_requests"]
    return {"constants": fit["constants"], "requests": requests, "slices": slices, "errors": rows}


def compared(name: str, ours: pd.DataFrame, theirs: pd.DataFrame) -> None:
    for column in ("ttft", "tpot"):
        a, b = (1e3 * table[column].dropna() for table in (ours, theirs))
        for title, share in (("median", 50), ("p90", 90)):
            x, y = np.percentile(a, share), np.percentile(b, share)
            print(f"{name:42} {column} {title:6} {x:8.2f} and {y:8.2f} ms, {x / y - 1:+.1%}")


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        seen, recorded = seen_and_recorded(Path(place, "cpu"), REAL, TRACES["real"])
        compared("client and records of engine=cpu", seen, recorded)
        seen, recorded = seen_and_recorded(Path(place, "sim"), SIMULATED, TRACES["simulated"])
        compared("client and records of engine=sim", seen, recorded)
        simulated = run(*SIMULATED, *TRACES["simulated"]).requests
        compared("records of engine=sim and its simulation", recorded, simulated)
        compared("client of engine=sim and its simulation", seen, simulated)
        found = observed(Path(place, "observed"))
    write_result(RESULTS / "three_worlds.json", {**provenance("experiments.three_worlds"), **found})


if __name__ == "__main__":
    main()
