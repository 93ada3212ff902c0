"""Do capacities found from different seeds agree within their intervals, and how many probes does one need?

    python -m experiments.capacity_repeats [--repeats 20] [--first-seed 0] [--workers 2]

Searches for the capacity of Qwen3-8B on one H100 under chat traffic, SLO p99 of TTFT within 500 ms and of TPOT within
40 ms, once per seed, for systems that break it in different ways: the queue for seats, the step times, and clients of a
closed loop. `inside` counts the repetitions whose interval holds the mean capacity of the others, `pairs` the
neighbouring ones whose capacities differ by less than the interval of the first. Results go to
experiments/results/capacity_repeats.json.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from experiments import RESULTS, composed, provenance, write_result
from harness.config import RunConfig
from harness.studies.capacity.capacity import search

SLO = ("metrics.slo.ttft_ms=500", "metrics.slo.tpot_ms=40")
SYSTEMS: dict[str, tuple[str, ...]] = {
    "256 seats, mixed": (),
    "1024 seats, vllm": ("scheduler=vllm", "max_num_seqs=1024"),
    "closed loop": ("scheduler=vllm", "max_num_seqs=1024", "arrival=closed_loop"),
}


def repeat(config: RunConfig, seeds: range) -> list[dict[str, Any]]:
    """A search per seed."""
    rows = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            found = search(config.model_copy(update={"seed": seed}), Path(folder), Console(quiet=True))
        assert found.estimate is not None
        value, low, high = found.estimate.value, found.estimate.low, found.estimate.high
        rows.append({"seed": seed, "capacity": value, "low": low, "high": high, "num_probes": len(found.probes)})
        print(rows[-1], flush=True)
    return rows


def judge(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How far the repetitions agree."""
    values = np.array([row["capacity"] for row in rows])
    low, high = np.array([row["low"] for row in rows]), np.array([row["high"] for row in rows])
    others = (values.sum() - values) / (len(values) - 1)
    return {
        "mean": float(values.mean()),
        "relative_std": float(values.std(ddof=1) / values.mean()),
        "inside": int(((low <= others) & (others <= high)).sum()),
        "pairs": int((np.abs(values - np.roll(values, -1)) < high - low).sum()),
        "median_precision": float(np.median((high - low) / 2 / values)),
        "largest_precision": float(np.max((high - low) / 2 / values)),
        "within_2_percent": int(((high - low) / 2 / values <= 0.02).sum()),
        "num_probes": [row["num_probes"] for row in rows],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.repeats)
    systems: dict[str, Any] = {}
    for name, overrides in SYSTEMS.items():
        config = composed("task=capacity", f"capacity.workers={arguments.workers}", *SLO, *overrides)
        rows = repeat(config, seeds)
        systems[name] = {"overrides": list(overrides), **judge(rows), "repeats": rows}
        print(name, {key: value for key, value in systems[name].items() if key != "repeats"}, flush=True)
        document = {"slo": list(SLO), "systems": systems, **provenance("experiments.capacity_repeats")}
        write_result(RESULTS / "capacity_repeats.json", document)


if __name__ == "__main__":
    main()
