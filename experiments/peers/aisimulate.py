"""How fast is the simulation beside AISimulate, NVIDIA's simulator in Rust? Both price steps by measured kernels.

    python -m venv peer && peer/bin/pip install aisimulate
    python -m experiments.peers.aisimulate --peer peer/bin/python [--repeats 3]

One synthetic trace (Mooncake's format, lognormal lengths, 40 requests/s, Llama-3.1-8B on an H100), of 2,000 and of
20,000 requests, in turns; the fastest of the repeats counts. Whole processes are timed, which read the trace, simulate
and write results; the difference between both sizes leaves out what a start takes. Writes
experiments/results/peer_aisimulate.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import yaml

from experiments import PLAIN, RESULTS, ROOT, provenance, write_result

_SIZES = (2_000, 20_000)
_BLOCK = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, help="a Python that has aisimulate")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    os.chdir(ROOT)
    fastest: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.repeats):
            for size in _SIZES:
                for name, command in commands(Path(folder), size, args.peer).items():
                    key = f"{name}_{size}"
                    fastest[key] = min(fastest.get(key, float("inf")), cpu_seconds(command))
    added = {name: fastest[f"{name}_{_SIZES[1]}"] - fastest[f"{name}_{_SIZES[0]}"] for name in ("ours", "peer")}
    document = {
        **provenance("experiments.peers.aisimulate"),
        "cpu_seconds": fastest,
        "cpu_seconds_of_18000_requests": added,
        "peer_over_ours": added["peer"] / added["ours"],
        "peer_over_ours_whole_process": fastest[f"peer_{_SIZES[1]}"] / fastest[f"ours_{_SIZES[1]}"],
    }
    write_result(RESULTS / "peer_aisimulate.json", document)
    print(json.dumps({key: value for key, value in document.items() if key != "environment"}, indent=1))


def commands(folder: Path, size: int, peer: str) -> dict[str, list[str]]:
    """What simulates a trace of `size` requests: ours and the peer's command."""
    trace, config = folder / f"{size}.jsonl", folder / f"{size}.yaml"
    write_trace(trace, size)
    source = {"type": "trace", "paths": [str(trace)], "format": "mooncake", "block_size": _BLOCK}
    scheduler = {"max_batched_tokens": 8192, "max_sequences": 256}
    engine = {
        "model": "meta-llama/Meta-Llama-3.1-8B", "hardware": "h100_sxm", "backend": "vllm",
        "workers": {"aggregated": {"scheduler": scheduler}},
    }  # fmt: skip
    document = {"traffic": {"source": source, "load": {"type": "trace_timestamps"}}, "engine": engine}
    config.write_text(yaml.safe_dump(document), encoding="utf-8")
    ours = [
        sys.executable, "run.py", *PLAIN, "model=llama-3.1-8b", "device=h100-80gb", "scheduler=vllm", "cost=profiled",
        "max_num_seqs=256", "max_num_batched_tokens=8192", "trace=mooncake", f"trace.path={trace}", "arrival=trace",
        "plots=false", "progress=false", f"hydra.run.dir={folder / 'ours'}",
    ]  # fmt: skip
    theirs = ["-m", "aisimulate", "predict", "-c", str(config), "--output-dir", str(folder / "peer"), "--overwrite"]
    return {"ours": ours, "peer": [peer, *theirs]}


def write_trace(path: Path, size: int) -> None:
    rng = np.random.default_rng(0)
    arrivals = np.cumsum(rng.exponential(25.0, size))
    prompts = np.clip(rng.lognormal(5.0, 1.0, size), 4, 2000).astype(int)
    outputs = np.clip(rng.lognormal(5.0, 0.9, size), 2, 1500).astype(int)
    lines = (
        {
            "timestamp": round(float(arrivals[i]), 3),
            "input_length": int(prompts[i]),
            "output_length": int(outputs[i]),
            "hash_ids": [i * 10 + j for j in range(-(-int(prompts[i]) // _BLOCK))],
        }
        for i in range(size)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def cpu_seconds(command: list[str]) -> float:
    """User and system time of a process, which other processes of the machine disturb less than its duration."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
