"""Compares with the aggregates of a file of `vllm bench serve --save-result` that has no details, or of a benchmark
report of llm-d.

The file tells of its workload how many requests there were, the sums of their lengths, and how they were sent. So as
many requests of the mean lengths are simulated, sent in the same way: a run whose lengths differed much has other
percentiles. `--save-detailed` records all that is needed to do better.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from harness.config import AllAtOnceArrival, ArrivalConfig, ClosedLoopArrival, GammaArrival, RunConfig
from harness.errors import MeasuredRunError
from harness.measured import llm_d, vllm_bench
from harness.measured.records import as_number
from harness.record.progress_bar import Terminal
from harness.results.metrics import json_ready
from harness.results.terminal import print_line
from harness.studies.run import serve
from harness.validation.error_statistics import UNITS
from harness.validation.error_tables import error_table, write_errors
from harness.validation.settings import different_settings
from harness.workload.arrivals import make_arrivals
from harness.workload.trace import Trace, trace_table

_LATENCY = re.compile(r"(mean|median|p[\d.]+)_(ttft|tpot|e2el)_ms")  # ITL of vLLM is a gap of chunks, not of tokens
_RATES = ("request_throughput", "output_throughput", "total_token_throughput", "duration")
_MOST = 10_000_000  # requests
LLM_D = "llm_d"


def has_aggregates_only(kind: str, path: Path) -> bool:
    """Whether the measured run of this kind has no requests; raises MeasuredRunError where it cannot be read."""
    return kind == LLM_D or (kind == "vllm_bench" and vllm_bench.has_aggregates_only(path))


def validate_aggregates(config: RunConfig, kind: str, path: Path, output_dir: Path, console: Console) -> dict[str, Any]:
    """Simulate what the file tells of its workload, write the signed errors of what there is, and return the content
    of validation.json.

    Raises:
        MeasuredRunError: the file does not say how many requests of which lengths there were.
        TwinServeError: the configuration cannot be used.
    """
    measured = llm_d.read_aggregates(path) if kind == LLM_D else vllm_bench.read_document(path)
    trace, arrival = _trace(path, measured), _arrival(measured)
    config = config.model_copy(update={"arrival": arrival})
    arrivals = make_arrivals(trace, arrival, np.random.default_rng(config.seed))
    served = serve(config, trace, arrivals, Terminal(config, console), lambda run: run.write(output_dir))
    served.check(output_dir)
    errors = errors_of(measured, served.summary)
    if errors.empty:
        raise MeasuredRunError(f"{path}: has no mean, median or percentile of TTFT, TPOT or E2EL, and no throughput")
    settings: dict[str, Any] = {key: measured[key] for key in ("model_id", "tensor_parallel_size") if key in measured}
    notes = [f"requests of mean lengths are simulated: the file has no details{' (--save-detailed)' * (kind != LLM_D)}"]
    if measured.get("max_concurrency") and not isinstance(arrival, ClosedLoopArrival):
        notes.append(f"max_concurrency={measured['max_concurrency']} is not simulated beside a request rate")
    warnings = [*notes, *served.result.meta["notes"], *different_settings(settings, config)]
    tool = "llm-d-benchmark" if kind == LLM_D else "vllm bench serve"
    source = {"kind": kind, "source": str(path), "engine": f"{measured.get('backend')}, by {tool}"}
    document = json_ready(
        {
            "measured": {**source, "num_requests": len(trace.rows), "settings": settings},
            "score": "all",
            "num_scored": len(trace.rows),
            "latency_from": "arrival",
            "errors": json_ready(errors.to_dict("records")),
            "warnings": warnings,
        }
    )
    write_errors(errors, document, output_dir)
    console.print(error_table(errors))
    for warning in warnings:
        print_line(console, f"! {warning}", "yellow")
    console.print(f"results: {output_dir}", highlight=False, soft_wrap=True)
    return dict(document)


def errors_of(measured: Mapping[str, Any], simulated: Mapping[str, Any]) -> pd.DataFrame:
    """A row for each number that both have, with its signed error in percent."""
    rows: list[dict[str, Any]] = []
    for key, value in measured.items():
        match = _LATENCY.fullmatch(key)
        here, there = as_number(simulated.get(key)), as_number(value)
        if not (match or key in _RATES) or not here >= 0 or not there > 0:
            continue
        metric, statistic = (match[2], match[1]) if match else (key, "total" if key == "duration" else "mean")
        row = {"metric": metric, "statistic": statistic, "unit": UNITS[metric], "measured": there, "simulated": here}
        rows.append({**row, "error_pct": 100 * (here / there - 1), "noise_floor_pct": math.nan})
    order = list(UNITS)
    rows.sort(key=lambda row: order.index(row["metric"]))
    return pd.DataFrame(rows)


def _trace(path: Path, measured: Mapping[str, Any]) -> Trace:
    keys = ("completed", "total_input_tokens", "total_output_tokens")
    count, *totals = (as_number(measured.get(key)) for key in keys)
    if not 1 <= count <= _MOST or not all(total >= count for total in totals):
        raise MeasuredRunError(f"{path}: no completed requests with total_input_tokens and total_output_tokens")
    names = ("num_prompt_tokens", "num_output_tokens")
    lengths = {name: np.full(int(count), round(total / count)) for name, total in zip(names, totals, strict=True)}
    return Trace(path.stem, trace_table({"arrival_time": np.full(int(count), np.nan), **lengths}), str(path))


def _arrival(measured: Mapping[str, Any]) -> ArrivalConfig:
    """As the client sent: at a rate, or else all at once, with at most max_concurrency under way."""
    rate, clients = as_number(measured.get("request_rate")), as_number(measured.get("max_concurrency"))
    if math.isfinite(rate) and rate > 0:
        burstiness = as_number(measured.get("burstiness"))
        return GammaArrival(rate=rate, burstiness=burstiness if burstiness > 0 else 1.0)
    return ClosedLoopArrival(concurrency=int(clients)) if clients >= 1 else AllAtOnceArrival()
