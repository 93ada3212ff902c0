"""How often are the verdict on a run and the intervals of its latencies right?

    python -m experiments.verdict [--runs 25] [--requests 500,2000,8000] [--cases "32 seats" "KV pool"]

Runs of several systems at 0.8 and at 1.1 of their capacity, each with other seeds. Capacity is the rate at which a
system that always has requests waiting finishes them (all arrive at once; first and last tenth left out). A verdict is
right if it says stable below capacity and overloaded above; unclear is wrong. An interval is right if it holds the
value of a run of 120,000 requests with yet another seed. Results go to experiments/results/verdict.json: of each
statistic, how many intervals hold the value, how many runs tell one, and how many of these tell its upper end.
"""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from experiments import RESULTS, composed, provenance, write_result
from harness.config import RunConfig
from harness.engines.engine import make_engine
from harness.results.metrics import summarize
from harness.results.tables import RunResult
from harness.studies.collecting import collect
from harness.workload.arrivals import make_arrivals
from harness.workload.readers import load_trace

LOADS = {0.8: "stable", 1.1: "overloaded"}
LONG_RUN = 120_000  # requests
INTERVALS = tuple(f"{statistic}_{name}_ms" for name in ("ttft", "tpot", "e2el") for statistic in ("mean", "p50", "p99"))
_PROFILE = "cost.profile=simulator/profiles/amd-epyc/tiny/tp1"
_TINY = ("model=tiny", "device=laptop-cpu", _PROFILE, "max_num_batched_tokens=1024")
_POISSON = ("arrival=poisson",)
_PREFILL = (
    "trace=synthetic", "trace.prompt.mean=4000", "trace.prompt.std=3000", "trace.prompt.max=20000",
    "trace.output.mean=64", "trace.output.std=64",
)  # fmt: skip
# What limits each system, its settings, and its arrivals. Lengths are those of ShareGPT unless said otherwise.
CASES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "8 seats": (("max_num_seqs=8",), _POISSON),
    "32 seats": (("max_num_seqs=32",), _POISSON),
    "256 seats": (("max_num_seqs=256",), _POISSON),
    "512 seats": (("max_num_seqs=512",), _POISSON),
    "64 seats, bursty": (("max_num_seqs=64",), ("arrival=gamma", "arrival.burstiness=0.25")),
    "64 seats, even": (("max_num_seqs=64",), ("arrival=constant",)),
    "KV pool": (("num_blocks=3000",), _POISSON),
    "prompts": (_PREFILL, _POISSON),
    "prefill first": (("max_num_seqs=128", "scheduler=prefill_first"), _POISSON),
    "early vLLM, KV pool": (("max_num_seqs=64", "scheduler=vllm_v0", "num_blocks=1500"), _POISSON),
    "CPU, 64 seats": ((*_TINY, "max_num_seqs=64"), _POISSON),
    "CPU, KV pool": ((*_TINY, "max_num_seqs=64", "num_blocks=500"), _POISSON),
}


@dataclass
class Score:
    """Verdicts of the runs of one case, length and load, and how many of their intervals hold the long run's value."""

    case: str
    num_requests: int
    load: float
    verdicts: Counter[str] = field(default_factory=Counter)
    offered_loads: list[float] = field(default_factory=list)
    intervals: dict[str, list[int]] = field(default_factory=lambda: {key: [0, 0, 0] for key in INTERVALS})

    def as_row(self) -> dict[str, Any]:
        """For the result file."""
        return {
            "case": self.case,
            "num_requests": self.num_requests,
            "load": self.load,
            "right": self.verdicts[LOADS[self.load]],
            "runs": self.verdicts.total(),
            "verdicts": dict(self.verdicts),
            "offered_load_mean": float(np.mean(self.offered_loads)),
            "offered_load_range": [min(self.offered_loads), max(self.offered_loads)],
            "intervals": self.intervals,
        }


def served(config: RunConfig) -> RunResult:
    """The result of a run of `config`, without its files."""
    trace = load_trace(config.trace, seed=config.seed, with_times=False)
    arrivals = make_arrivals(trace, config.arrival, np.random.default_rng(config.seed))
    engine = make_engine(config, trace, arrivals)
    engine.run()
    return collect(config, trace, arrivals, engine, None, 0.0)


def configured(case: str, num_requests: int, seed: int, arrival: Sequence[str]) -> RunConfig:
    """The configuration of a run of a case."""
    settings = (*CASES[case][0], *arrival, f"trace.num_requests={num_requests}", f"seed={seed}")
    return composed(*settings)


def capacity(case: str, num_requests: int = 12_000) -> float:
    """Requests/s that the system of a case finishes while some are waiting."""
    requests = served(configured(case, num_requests, 1, ("arrival=all_at_once",))).requests
    finish = np.sort(requests["finish_time"].to_numpy())
    first, last = num_requests // 10, int(np.searchsorted(finish, requests["first_scheduled_time"].max()) * 0.9)
    return float((last - first) / (finish[last] - finish[first]))


def score(case: str, num_requests: int, load: float, rate: float, seeds: range, long_run: dict[str, Any]) -> Score:
    """Runs of one case and load; `long_run` is the summary that intervals are held against, empty for none."""
    found = Score(case, num_requests, load)
    for seed in seeds:
        config = configured(case, num_requests, seed, (*CASES[case][1], f"arrival.rate={rate * load:.6g}"))
        summary = summarize(served(config), config.metrics)
        found.verdicts[summary["verdict"]] += 1
        found.offered_loads.append(summary["offered_load"])
        for key in INTERVALS if long_run else ():
            counts = zip(found.intervals[key], _judged(summary, key, long_run[key]), strict=True)
            found.intervals[key] = [before + now for before, now in counts]
    return found


def _judged(summary: dict[str, Any], key: str, value: float) -> tuple[bool, bool, bool]:
    """Whether the interval holds a value, is told at all, and tells its upper end; an end not told is beyond it."""
    low, high = summary[f"{key}_low"], summary[f"{key}_high"]
    is_told = low is not None or high is not None
    holds = (low is None or low <= value) and (high is None or value <= high)
    return is_told and holds, is_told, high is not None


def coverage(rows: Sequence[dict[str, Any]]) -> dict[str, list[int]]:
    """Of each length and statistic: the sums of the counts over all systems."""
    sums: dict[str, list[int]] = {}
    for row in rows:
        for key, counts in row["intervals"].items() if row["load"] < 1 else ():
            name = f"{row['num_requests']} requests, {key}"
            sums[name] = [sum(pair) for pair in zip(sums.get(name, [0, 0, 0]), counts, strict=True)]
    return sums


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=25)
    parser.add_argument("--requests", default="500,2000,8000")
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=CASES)
    parser.add_argument("--out", type=Path, default=RESULTS / "verdict.json")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    seeds = range(options.first_seed, options.first_seed + options.runs)
    rows = []
    for case in options.cases:
        rate = capacity(case)
        long = configured(case, LONG_RUN, 2, (*CASES[case][1], f"arrival.rate={rate * min(LOADS):.6g}"))
        long_run = summarize(served(long), long.metrics)
        for num_requests in map(int, options.requests.split(",")):
            for load in LOADS:
                found = score(case, num_requests, load, rate, seeds, long_run if load < 1 else {})
                rows.append({**found.as_row(), "capacity": rate})
                print(case, num_requests, load, dict(found.verdicts), flush=True)
    document = {"rows": rows, "coverage": coverage(rows), "provenance": provenance("experiments.verdict")}
    write_result(options.out, document)
    for name, counts in coverage(rows).items():
        print(f"{name}: {counts[0]} of {counts[1]} intervals hold the value, {counts[2]} have an upper end")
    print(f"{sum(row['right'] for row in rows)} of {sum(row['runs'] for row in rows)} verdicts are right")


if __name__ == "__main__":
    main()
