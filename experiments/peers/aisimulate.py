"""How fast is the simulation beside AISimulate, NVIDIA's simulator in Rust? Both price steps by measured kernels.

    python -m venv peer && peer/bin/pip install aisimulate
    python -m experiments.peers.aisimulate --peer peer/bin/python [--traces ../shared/traces] [--repeats 3]

Llama-3.1-8B on an H100 serves three traces in Mooncake's format, a short and a long piece of each, in turns; the
fastest of the repeats counts. Whole processes are timed, which read the trace, simulate and write results; the
difference between both sizes leaves out what a start takes. Both simulate the same KV cache, of blocks of 16 tokens as
in vLLM, and cache prefixes; AISimulate's own default is blocks of 64, a quarter as many to look after. Writes
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
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from experiments import PLAIN, RESULTS, ROOT, composed, provenance, write_result
from experiments.simulation_speed import MOONCAKE
from harness.workload.readers import load_trace

_HASHED = 512  # tokens that a hash id of the traces stands for
_BLOCK, _NUM_BLOCKS = 16, 27_868  # of KV; what 90 % of 80 GB hold beside the model by our account
_INTERVAL_MS = 25.0  # between arrivals, on average

WriteTrace = Callable[[Path, int], None]
"""Writes so many requests to a file."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, help="a Python that has aisimulate")
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "traces", help="with mooncake/ in it")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    conversations = (args.traces / MOONCAKE).resolve()
    os.chdir(ROOT)
    results = [
        {"trace": name, **beside(args.peer, args.repeats, sizes, write)}
        for name, sizes, write in (
            ("lognormal lengths, 40/s", (2_000, 20_000), write_trace),
            ("ShareGPT lengths, 40/s", (2_000, 20_000), write_sharegpt),
            ("Mooncake conversations", (2_000, 12_000), partial(write_conversations, conversations)),
        )
    ]
    settings = {"block_size": _BLOCK, "num_blocks": _NUM_BLOCKS}
    document = {**provenance("experiments.peers.aisimulate"), **settings, "traces": results}
    write_result(RESULTS / "peer_aisimulate.json", document)
    print(json.dumps(results, indent=1))


def beside(peer: str, repeats: int, sizes: tuple[int, int], write: WriteTrace) -> dict[str, Any]:
    """CPU seconds of both on one trace, and how many times as fast ours is."""
    fastest: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            write(Path(folder) / f"{size}.jsonl", size)
        for _ in range(repeats):
            for size in sizes:
                for name, command in commands(Path(folder), size, peer).items():
                    key = f"{name}_{size}"
                    fastest[key] = min(fastest.get(key, float("inf")), cpu_seconds(command))
    short, long = sizes
    added = {
        name: (fastest[f"{name}_{long}"] - fastest[f"{name}_{short}"]) / (long - short) for name in ("ours", "peer")
    }
    return {
        "cpu_seconds": fastest,
        "cpu_us_of_added_request": {name: seconds * 1e6 for name, seconds in added.items()},
        "peer_over_ours": added["peer"] / added["ours"],
        "peer_over_ours_whole_process": fastest[f"peer_{long}"] / fastest[f"ours_{long}"],
    }


def commands(folder: Path, size: int, peer: str) -> dict[str, list[str]]:
    """What simulates the trace of `size` requests in `folder`: ours and the peer's command."""
    trace, config = folder / f"{size}.jsonl", folder / f"{size}.yaml"
    source = {"type": "trace", "paths": [str(trace)], "format": "mooncake", "block_size": _HASHED}
    worker = {
        "scheduler": {"max_batched_tokens": 8192, "max_sequences": 256},
        "kv_cache": {
            "block_size": _BLOCK, "prefix_caching": True, "capacity": {"type": "fixed", "blocks": _NUM_BLOCKS},
        },
    }  # fmt: skip
    engine = {
        "model": "meta-llama/Meta-Llama-3.1-8B", "hardware": "h100_sxm", "backend": "vllm",
        "workers": {"aggregated": worker},
    }  # fmt: skip
    document = {"traffic": {"source": source, "load": {"type": "trace_timestamps"}}, "engine": engine}
    config.write_text(yaml.safe_dump(document), encoding="utf-8")
    ours = [
        sys.executable, "run.py", *PLAIN, "model=llama-3.1-8b", "device=h100-80gb", "scheduler=vllm", "cost=profiled",
        "max_num_seqs=256", "max_num_batched_tokens=8192", f"block_size={_BLOCK}", f"num_blocks={_NUM_BLOCKS}",
        "trace=mooncake", f"trace.path={trace}", "arrival=trace", "plots=false", "progress=false",
        f"hydra.run.dir={folder / 'ours'}",
    ]  # fmt: skip
    theirs = ["-m", "aisimulate", "predict", "-c", str(config), "--output-dir", str(folder / "peer"), "--overwrite"]
    return {"ours": ours, "peer": [peer, *theirs]}


def write_trace(path: Path, size: int) -> None:
    """Lognormal lengths, no prefix in common."""
    rng = np.random.default_rng(0)
    arrivals = np.cumsum(rng.exponential(_INTERVAL_MS, size))
    prompts = np.clip(rng.lognormal(5.0, 1.0, size), 4, 2000).astype(int)
    outputs = np.clip(rng.lognormal(5.0, 0.9, size), 2, 1500).astype(int)
    _write_lengths(path, arrivals, prompts, outputs)


def write_sharegpt(path: Path, size: int) -> None:
    """The built-in lengths after ShareGPT, no prefix in common."""
    table = load_trace(composed("trace=sharegpt", f"trace.num_requests={size}").trace, seed=0).table
    arrivals = np.cumsum(np.random.default_rng(0).exponential(_INTERVAL_MS, size))
    _write_lengths(path, arrivals, table["num_prompt_tokens"].to_numpy(), table["num_output_tokens"].to_numpy())


def write_conversations(source: Path, path: Path, size: int) -> None:
    """The first requests of Mooncake's trace, with its arrivals and hash ids."""
    with source.open(encoding="utf-8") as lines:
        path.write_text("".join(islice(lines, size)), encoding="utf-8")


def _write_lengths(
    path: Path, arrivals_ms: NDArray[np.float64], prompts: NDArray[np.int64], outputs: NDArray[np.int64]
) -> None:
    num_hashes = -(-prompts // _HASHED)
    first = np.cumsum(num_hashes) - num_hashes
    lines = (
        {
            "timestamp": round(float(arrivals_ms[i]), 3),
            "input_length": int(prompts[i]),
            "output_length": int(outputs[i]),
            "hash_ids": [*range(int(first[i]), int(first[i] + num_hashes[i]))],
        }
        for i in range(len(prompts))
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
