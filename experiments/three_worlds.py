"""One workload in three worlds: a simulation, the same system as a server in real time, our real engine as a server.

Whether a client sees what the server records, and whether a simulated server is as fast as its simulation. Server and
client are processes of their own; on a machine with other work their times are later.

    python -m experiments.three_worlds
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd

from harness import run

ROOT = Path(__file__).resolve().parents[1]
SIMULATED = ("engine=sim", "model=qwen3-8b", "device=h100-80gb")
REAL = (
    "engine=cpu", "engine.num_threads=1", "model=tiny", "device=laptop-cpu", "max_num_batched_tokens=512",
    "max_num_seqs=16",
)  # fmt: skip
TRACES = {
    "simulated": ("trace.num_requests=150", "arrival.rate=4"),
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


def seen_and_recorded(folder: Path, system: Sequence[str], trace: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The requests of a trace as the client sees them, without its own lateness, and as the server recorded them."""
    with server(folder, *system) as address:
        model = [each for each in system if each.startswith("model=")]
        seen = run("engine=openai", f"engine.endpoint={address}", *model, *trace).requests
    seen["ttft"] -= seen["replay_lag"]
    return seen, pd.read_parquet(folder / "requests.parquet")


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


if __name__ == "__main__":
    main()
