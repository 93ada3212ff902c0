"""How far off are simulations? Every public measurement that can be read, simulated: the board.

    python -m experiments.board --silicon <silicon_sample.csv> --history <folder>     all rows, 20 minutes on two cores
    python -m experiments.board --silicon <silicon_sample.csv> --sample 20            every 20th row of each server
    python -m experiments.board --silicon <silicon_sample.csv> --resume               goes on after a break
    python -m experiments.board --docs                                                only the tables of docs and README

silicon_sample.csv lies in the package aiconfigurator-core, in systems/; `--history` is the folder of old tables that
experiments.default_profiles reads, too: without it rows of SGLang and of gpt-oss by TensorRT-LLM have the newest
kernels. Published logs are looked for in --data. Nothing is fitted here; rows of servers that constants were fitted on
say so. Errors are simulated against measured, in percent, above 0 where the simulation says more. Writes
experiments/results/board/points.csv, left_out.csv and classes.csv, docs/fidelity/board.png, the tables of
docs/fidelity.md and README.md, and what runs say of their known error: simulator/profiles/known_errors.csv.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

import pandas as pd

from experiments import FIDELITY, RESULTS, ROOT
from experiments.board import measured_fleet, measured_pd, ordinary_servers, other_gpus, published_runs
from experiments.board.classes import classes, known_errors, without_repeated
from experiments.board.figures import board_chart
from experiments.board.pages import write_pages
from experiments.board.point import Found, flat, table_of
from experiments.inferencex import apart
from experiments.inferencex import points as inferencex
from harness.config.schema.tasks.plotting import AS_USUAL
from harness.engines.resolving.known_error import KNOWN_ERRORS
from harness.figures import write_charts

_FOLDER = RESULTS / "board"
_SCRATCH = Path("outputs/board/jobs.jsonl")
_ROOFLINE_SHARE = 5  # one row in so many is priced by the roofline, too
Job = Callable[[], Found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--silicon", type=Path)
    parser.add_argument(
        "--history", type=Path, help="folder of aiconfigurator_core with old tables of SGLang and TensorRT-LLM"
    )
    parser.add_argument("--docs", action="store_true", help="write the tables of the pages from stored results")
    parser.add_argument("--data", type=Path, default=Path("../shared/ground_truth"))
    parser.add_argument(
        "--sample", type=int, default=1, help="one row in so many of each server; writes no known errors"
    )
    parser.add_argument("--resume", action="store_true", help="keep what an interrupted call found")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    os.chdir(ROOT)
    if args.docs:
        return write_pages(_FOLDER)
    if args.silicon is None:
        parser.error("--silicon is needed, but with --docs")
    if not args.resume:
        _SCRATCH.unlink(missing_ok=True)
    start = time.perf_counter()
    _run(dict(jobs(args.silicon, args.data, args.sample, args.history)), args.processes)
    rows, left_out = _stored()
    table = without_repeated(table_of(rows))
    by_class = classes(table)
    folder = _FOLDER if args.sample == 1 else _SCRATCH.parent
    folder.mkdir(parents=True, exist_ok=True)
    table.dropna(axis=1, how="all").to_csv(folder / "points.csv", index=False, float_format="%.5g")
    by_class.to_csv(folder / "classes.csv", index=False, float_format="%.4g")
    reasons = _reasons(table, left_out)
    reasons.to_csv(folder / "left_out.csv", index=False)
    if args.sample == 1:
        known_errors(table).to_csv(KNOWN_ERRORS, index=False, float_format="%.3g")
        write_pages(folder)
    write_charts({"board": board_chart(table)}, FIDELITY if args.sample == 1 else folder, AS_USUAL)
    print(by_class.round(1).to_string(), reasons.to_string(), sep="\n\n")
    print(f"{(table['excluded'] == '').sum()} points count, {time.perf_counter() - start:.0f} s")


def jobs(silicon: Path, data: Path, every: int, history: Path | None = None) -> Iterator[tuple[str, Job]]:
    """By name, what makes points: a server, a page or an arm each; first those of vLLM by measured kernels."""
    selections = sorted(inferencex.selections(silicon), key=lambda selected: selected.backend != "vllm")
    runs = data / "gpustack" / "runs.jsonl"
    for cost, share in (("profiled", every), ("roofline", every * _ROOFLINE_SHARE)):
        for page in ordinary_servers.pages(runs):
            yield f"gpustack {cost} {page}", partial(ordinary_servers.points, runs, silicon, page, share, cost, history)
        for selected in selections:
            if cost == "profiled" or selected.backend == "vllm":
                name = f"inferencex {cost} {' '.join(map(str, selected))}"
                yield name, partial(inferencex.points, silicon, selected, share, cost, history)
        for gpu in other_gpus.gpus():
            yield f"other GPUs {cost} {gpu}", partial(other_gpus.points, data, gpu, cost)
        if cost == "profiled":
            for which in apart.selections(silicon):
                yield f"inferencex apart {' '.join(which)}", partial(apart.points, silicon, which, every)
            yield from _few(data)


def _few(data: Path) -> Iterator[tuple[str, Job]]:
    """Sources of a few points each."""
    cases = {"LLMServingSim": ("llama", "qwen"), "DistServe": published_runs.DISTSERVE_RATES}
    for source, runs_of in cases.items():
        for case in runs_of:
            yield f"{source} {case}", partial(published_runs.points, data, source, case)
    for report, told in measured_fleet.REPORTS.items():
        for arm in told.arms:
            yield f"llm-d {report} {arm}", partial(measured_fleet.points, data / "llm_d", report, arm)
    yield "llm-d random", partial(measured_pd.random, data / "llm_d")
    for arm in measured_pd.ARMS:
        yield f"llm-d eviction {arm}", partial(measured_pd.eviction, data / "llm_d", arm)


def _run(todo: dict[str, Job], processes: int) -> None:
    """Run the jobs that are not stored, and store each as it ends; raises SystemExit where some fail."""
    _SCRATCH.parent.mkdir(parents=True, exist_ok=True)
    failed: list[str] = []
    done = {json.loads(line)["job"] for line in _lines()}
    with ProcessPoolExecutor(processes) as pool, _SCRATCH.open("a", encoding="utf-8") as file:
        pending = {pool.submit(job): name for name, job in todo.items() if name not in done}
        for future in as_completed(pending):
            name = pending[future]
            if (error := future.exception()) is not None:
                failed.append(f"{name}: {error!r}")
                continue
            found = future.result()
            rows = [flat(point) for point in found.points]
            file.write(json.dumps({"job": name, "rows": rows, "left_out": dict(found.left_out)}) + "\n")
            file.flush()
            print(f"{name}: {len(rows)} points", flush=True)
    if failed:
        raise SystemExit("\n".join(["broken off; --resume tries these again:", *failed]))


def _lines() -> list[str]:
    return _SCRATCH.read_text(encoding="utf-8").splitlines() if _SCRATCH.exists() else []


def _stored() -> tuple[list[dict[str, object]], Counter[tuple[str, str]]]:
    """The rows of all jobs, and how many were left out, by source and reason."""
    rows: list[dict[str, object]] = []
    left_out: Counter[tuple[str, str]] = Counter()
    for line in _lines():
        stored = json.loads(line)
        rows += stored["rows"]
        if " roofline " not in stored["job"]:  # which leaves out the same again
            left_out.update({(stored["job"].split()[0], reason): n for reason, n in stored["left_out"].items()})
    return rows, left_out


def _reasons(table: pd.DataFrame, left_out: Counter[tuple[str, str]]) -> pd.DataFrame:
    """How many measurements do not count, by reason."""
    excluded = table[(table["excluded"] != "") & (table["cost"] != "roofline")]
    counts = left_out + Counter(zip(excluded["source"], excluded["excluded"], strict=True))
    rows = [(source, reason, count) for (source, reason), count in counts.most_common()]
    return pd.DataFrame(rows, columns=["source", "reason", "measurements"])


if __name__ == "__main__":
    main()
