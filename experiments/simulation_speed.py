"""How fast is the simulation? Requests/s, steps/s and simulated over real time ("speed-up"), by traffic and servers.

    python experiments/simulation_speed.py [--traces ../shared/traces] [--repeats 3] [--cases azure,mooncake]

Each case runs in a process of its own on one core; the fastest of the repeats counts, since everything that disturbs
a run makes it slower. "simulate" is the simulation alone, "total" adds reading the trace and building the tables.
ShareGPT lengths come from the built-in sampler. Results go to experiments/results/simulation_speed.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from experiments import composed  # noqa: E402
from harness.engines.engine import make_engine  # noqa: E402
from harness.results.stored.environment import environment  # noqa: E402
from harness.workload.arrivals import make_arrivals  # noqa: E402
from harness.workload.readers import load_trace  # noqa: E402

COMMON = ["model=qwen3-8b", "device=h100-80gb", "max_num_seqs=512"]
SHAREGPT = ["trace=sharegpt", "arrival=poisson", "arrival.rate=40"]
AZURE = "azure2023/AzureLLMInferenceTrace_conv.csv"
MOONCAKE = "mooncake/conversation_trace.jsonl"
PROFILE = ROOT / "simulator" / "profiles" / "amd-epyc" / "tiny" / "tp1"


@dataclass(frozen=True)
class Speed:
    """What one case took: wall times in s, peak memory in bytes, simulated time in s."""

    case: str
    num_requests: int
    num_steps: int
    simulated_s: float
    simulate_s: float
    total_s: float
    peak_bytes: int


def write_twice(source: Path, target: Path) -> None:
    """A Mooncake trace followed by itself with other contents, as many requests as its trace `toolagent` has."""
    rows = [json.loads(line) for line in source.read_text().splitlines()]
    period = rows[-1]["timestamp"] + 3000
    first_new = 1 + max(max(row["hash_ids"]) for row in rows)
    rows += [
        {**row, "timestamp": row["timestamp"] + period, "hash_ids": [each + first_new for each in row["hash_ids"]]}
        for row in rows
    ]
    target.write_text("".join(json.dumps(row) + "\n" for row in rows[:23_608]))


def cases(traces: Path, lengthened: Path) -> dict[str, list[str]]:
    """The overrides of each case; `lengthened` is where the Mooncake trace is written twice."""
    mooncake = ["trace=mooncake", f"trace.path={traces / MOONCAKE}", "arrival=trace"]
    # All at once, what is planned does not depend on step times: both cost models price the very same steps.
    tiny = ["model=tiny", "device=laptop-cpu", "max_num_seqs=64", "max_num_batched_tokens=1024", "trace=sharegpt"]
    tiny += ["trace.num_requests=50000", "arrival=all_at_once"]
    roofline = {
        "sharegpt 10k": [*SHAREGPT, "trace.num_requests=10000"],
        "sharegpt 100k": [*SHAREGPT, "trace.num_requests=100000"],
        "sharegpt 1M": [*SHAREGPT, "trace.num_requests=1000000"],
        "sharegpt 100k, backlog": ["trace=sharegpt", "trace.num_requests=100000", "arrival=all_at_once"],
        "azure conv": ["trace=azure", f"trace.path={traces / AZURE}", "arrival=trace"],
        "mooncake, blocks of 512": [*mooncake, "block_size=512"],
        "mooncake, blocks of 16": [*mooncake, "block_size=16"],
        "tiny, backlog, roofline": tiny,
    }
    profiled = {
        "sharegpt 100k, profiled": [*SHAREGPT, "trace.num_requests=100000"],
        "sharegpt 100k, profiled, vllm": [*SHAREGPT, "trace.num_requests=100000", "scheduler=vllm"],
        "tiny, backlog, profiled": [*tiny, f"cost.profile={PROFILE}"],
    }
    # The same load for each server, whatever their number.
    fleets = {
        f"sharegpt {name}, {count} servers{in_turn}": [
            "trace=sharegpt", f"trace.num_requests={number}", f"arrival.rate={40 * count}", f"replicas={count}",
            "router=round_robin" if in_turn else "router=least_requests",
        ]
        for name, number, count in [*(("160k", 160_000, n) for n in (1, 4, 16)), ("1M", 10**6, 64)]
        for in_turn in (("", ", in turn") if count > 1 else ("",))
    }  # fmt: skip
    fleets |= {
        f"mooncake twice, {count} servers": [
            "trace=mooncake", f"trace.path={lengthened}", "arrival=trace", f"replicas={count}",
            "router=prefix_affinity",
        ]
        for count in (8, 64)
    }  # fmt: skip
    return {name: [*case, "cost=roofline"] for name, case in (roofline | fleets).items()} | profiled


def measure(case: str, overrides: list[str]) -> Speed:
    """Run one case in this process."""
    config = composed(*COMMON, *overrides)
    started = time.perf_counter()
    trace = load_trace(config.trace, seed=config.seed)
    arrivals = make_arrivals(trace, config.arrival, np.random.default_rng(config.seed))
    engine = make_engine(config, trace, arrivals)
    loaded = time.perf_counter()
    engine.run()
    simulated = time.perf_counter()
    tables = engine.record.tables(trace, engine.unfinished())
    ended = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    simulated_s = engine.record.now_ns * 1e-9
    return Speed(case, len(trace.table), len(tables.steps), simulated_s, simulated - loaded, ended - started, peak)


def best_of(case: str, overrides: list[str], repeats: int) -> Speed:
    """The fastest of several runs, each in a fresh process."""
    context = multiprocessing.get_context("spawn")
    runs = []
    for _ in range(repeats):
        with context.Pool(1) as pool:
            runs.append(pool.apply(measure, (case, overrides)))
    return min(runs, key=lambda speed: speed.simulate_s)


def show(speeds: list[Speed], console: Console) -> None:
    table = Table("case", "requests/s", "steps/s", "speed-up", "simulate, s", "total, s", "peak, GB", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for speed in speeds:
        table.add_row(
            speed.case,
            f"{speed.num_requests / speed.simulate_s:,.0f}",
            f"{speed.num_steps / speed.simulate_s:,.0f}",
            f"{speed.simulated_s / speed.simulate_s:,.0f}x",
            f"{speed.simulate_s:.2f}",
            f"{speed.total_s:.2f}",
            f"{speed.peak_bytes / 1e9:.2f}",
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "traces")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", default="", help="comma-separated beginnings of case names; all if empty")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        _run(args, Path(name) / "mooncake.jsonl")


def _run(args: argparse.Namespace, lengthened: Path) -> None:
    console = Console()
    if (source := args.traces / MOONCAKE).exists():
        write_twice(source, lengthened)
    wanted = tuple(args.cases.split(","))
    speeds = []
    for case, overrides in cases(args.traces.resolve(), lengthened).items():
        missing = [word for word in overrides if word.startswith("trace.path=") and not Path(word[11:]).exists()]
        if missing:
            console.print(f"{case}: skipped, no file {missing[0][11:]}")
        elif case.startswith(wanted):
            console.print(f"{case} ...")
            speeds.append(best_of(case, overrides, args.repeats))
    show(speeds, console)
    if not args.cases:
        path = ROOT / "experiments" / "results" / "simulation_speed.json"
        path.parent.mkdir(exist_ok=True)
        command = " ".join(["python", "experiments/simulation_speed.py", *sys.argv[1:]])
        result = {"command": command, "environment": environment(), "cases": [asdict(speed) for speed in speeds]}
        path.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
