"""The page of one run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.config.schema.tasks.plotting import AS_USUAL
from harness.errors import TwinServeError
from harness.figures.chart import is_known
from harness.figures.charts.latency import counted, latency_chart
from harness.figures.charts.requests import requests_chart
from harness.figures.charts.timeline import cache_chart, timeline_chart
from harness.figures.drawn_metrics import tail_of
from harness.figures.pages.elements import Cell, Markup, Tone, bullets, facts, figures, section, table, tiles, verdict
from harness.figures.pages.page import Page
from harness.figures.pages.reproduction import reproduction
from harness.figures.pages.server_table import server_table, start_lines
from harness.figures.pages.words import (
    LATENCIES,
    arrival_text,
    count,
    device_text,
    interval,
    limits_of,
    number_cell,
    numeric,
    slo_text,
)
from harness.figures.subtitles import measured_or_simulated
from harness.results.measures.unserved import unserved_text
from harness.results.stored.files import REQUESTS, STEPS, read_gaps, read_numbers, read_summary
from harness.results.summary import number, percent, scheduler_text
from harness.results.tables import RunResult

_STEP_COLUMNS = [
    "start_time", "duration", "num_decode_seqs", "num_prefill_tokens", "num_running", "num_waiting", "num_used_blocks",
    "num_preempted",
]  # fmt: skip
_NEWER_COLUMNS = [
    "num_accepted_tokens", "num_cached_tokens", "num_first_admitted_tokens", "num_kv_tokens", "num_reserved_slots",
    "num_external_slots", "server", "lane",
]  # fmt: skip
_REQUEST_COLUMNS = [
    "request_id", "status", "arrival_time", "first_token_time", "ttft", "tpot", "e2el", "num_prompt_tokens",
    "num_output_tokens",
]  # fmt: skip
_TOO_SHORT = "?"  # in place of an interval
_STATISTICS = {"mean": "mean", "median": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}


def run_page(folder: Path) -> Page:
    """The page of the run whose result is in `folder`.

    Raises:
        TwinServeError: the result cannot be read.
    """
    summary = read_summary(folder)
    result = _read_drawn(folder, summary)
    config = summary.get("config") or {}
    limits = limits_of(summary, config)
    timeline = timeline_chart(result, summary, AS_USUAL)
    return Page(
        title=f"{summary.get('model') or 'a model'} on {device_text(summary)}",
        badges=badges(summary),
        question=_question(summary, config, limits),
        parts=[
            *verdicts(summary, limits),
            tiles(_tiles(summary)),
            section("Latencies", _latency_table(summary), figures(latency_chart(result, summary))),
            section("Sessions", _turn_table(summary)),
            section("Servers", server_table(summary), start_lines(summary)),
            section("Over time", figures(timeline, cache_chart(result, summary))),
            section("Single requests", figures(requests_chart(counted(result.request_rows, summary), limits))),
            section("Facts", facts(_facts(summary))),
            section("Good to know", bullets(_warnings(summary))),
            reproduction(folder, summary.get("environment") or {}, config),
        ],
    )


def _read_drawn(folder: Path, summary: dict[str, Any]) -> RunResult:
    """The result with the columns that are drawn, as all columns of a large run take seconds to read."""
    try:
        steps = read_numbers(folder / STEPS, [*_STEP_COLUMNS, *_NEWER_COLUMNS])
    except TwinServeError:  # of an earlier version, or damaged
        steps = read_numbers(folder / STEPS, _STEP_COLUMNS)
    return RunResult(
        request_rows=read_numbers(folder / REQUESTS, _REQUEST_COLUMNS),
        step_rows=steps,
        gaps=read_gaps(folder),
        num_blocks=summary["num_blocks"],
        block_size=summary["block_size"],
        complete=summary["complete"],
        meta=summary,
    )


def badges(summary: Mapping[str, Any]) -> list[tuple[Tone, str]]:
    whole: list[tuple[Tone, str]] = [] if summary.get("complete") else [("bad", "INCOMPLETE")]
    return [("plain", measured_or_simulated(summary)), *whole]


def verdicts(summary: Mapping[str, Any], limits: Mapping[str, float]) -> list[Markup]:
    """What the run says on its load and on its SLO, and why it ended early where it did."""
    found = []
    if not summary.get("complete"):
        left = f"{summary.get('unfinished') or 0:,} of {summary.get('num_prompts') or 0:,} requests unfinished"
        found.append(verdict("bad", "Incomplete:", f"{summary.get('ended_early') or 'interrupted'}; {left}"))
    if unserved := unserved_text(summary):
        found.append(verdict("bad", "Not all served:", f"{unserved}; the reasons stand below."))
    if load := _load_verdict(summary):
        found.append(verdict(*load))
    met = summary.get("slo_met")
    if limits and met is not None:
        text = "; ".join(_against_limit(summary, name, limit) for name, limit in limits.items())
        found.append(verdict("good" if met else "bad", "SLO met:" if met else "SLO missed:", text))
    return found


def _load_verdict(summary: Mapping[str, Any]) -> tuple[Tone, str, str] | None:
    offered, served, growth = (numeric(summary.get(key)) for key in ("offered_rate", "served_rate", "queue_growth"))
    rates = f"{number(offered)} requests/s arrive and {number(served)} are served"
    match summary.get("verdict"):
        case "overloaded":
            grows = f"the queue grows by {number(growth)} requests/s"
            return "bad", "Overloaded:", f"{rates}; {grows}. The longer the run, the longer its latencies."
        case "stable":
            return "good", "Stable:", f"{rates}."
        case "unclear":
            return "warn", "Unclear whether the load is sustained:", f"{rates}; a longer run would tell."
        case "closed":
            return "plain", "Closed loop:", "requests wait for the system, so no rate is offered and none is too high."
    return None


def _against_limit(summary: Mapping[str, Any], name: str, limit: float) -> str:
    key = f"{tail_of(summary)}_{name}_ms"
    around = interval(summary, key)
    value = f"{number(numeric(summary.get(key)))} ms{f' ({around})' if around else ''}"
    return f"{tail_of(summary)} {LATENCIES[name]} {value}, limit {limit:g} ms"


def _question(summary: Mapping[str, Any], config: Mapping[str, Any], limits: Mapping[str, float]) -> str:
    requests = f"{count(summary.get('num_prompts') or 0, 'request')} of the trace {summary.get('trace')}"
    scheduler = scheduler_text(summary)
    seats = config.get("max_num_seqs") if scheduler else None
    with_what = [
        *([f"the {scheduler} scheduler", f"blocks of {summary['block_size']} tokens"] if scheduler else []),
        *([f"at most {count(seats, 'sequence')} at once"] if seats else []),
    ]
    asked = (
        f"How does {summary.get('model') or 'a model'} on {device_text(summary)} serve {requests}, "
        f"{arrival_text(config)}{', with ' if with_what else ''}{', '.join(with_what)}"
    )
    return asked + (f"? Is {slo_text(limits, tail_of(summary))}?" if limits else "?")


def _tiles(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    tail = tail_of(summary)
    per_gpu = summary.get("output_throughput_per_gpu")
    more = f"{number(numeric(per_gpu))} per GPU" if is_known(per_gpu) else ""
    found = [("Output throughput", f"{_shown(summary, 'output_throughput')} tok/s", more)]
    for name in ("ttft", "tpot"):
        key = f"{tail}_{name}_ms"
        found.append((f"{tail} {LATENCIES[name]}", f"{_shown(summary, key)} ms", interval(summary, key)))
    if is_known(summary.get("offered_rate")):
        served = f"{_shown(summary, 'served_rate')} served"
        found.append(("Offered rate", f"{_shown(summary, 'offered_rate')} req/s", served))
    else:
        found.append(("Completed", f"{_shown(summary, 'request_throughput')} req/s", ""))
    if is_known(summary.get("goodput_share")):
        good = f"{_shown(summary, 'request_goodput')} req/s"
        found.append(("Meet the SLO", percent(summary["goodput_share"]), good))
    peak = f"{percent(summary.get('max_kv_cache_usage'))} at most"
    return [*found, ("KV cache in use", percent(summary.get("mean_kv_cache_usage")), peak)]


def _latency_table(summary: Mapping[str, Any]) -> Markup:
    shown = [key for key in _STATISTICS if f"{key}_ttft_ms" in summary]
    rows = []
    for name, label in LATENCIES.items():
        keys = [f"{statistic}_{name}_ms" for statistic in shown]
        around = [_around(summary, key) for key in keys]
        cells = [
            Cell(number_cell(summary.get(key)).text + (f" ({bounds})" if bounds else ""), numeric(summary.get(key)))
            for key, bounds in zip(keys, around, strict=True)
        ]
        rows.append([Cell(label), *cells])
    has_intervals = any(_around(summary, f"{key}_ttft_ms") for key in shown)
    caption = "In ms."
    if has_intervals:
        caption = (
            f"In ms; in brackets the 95 % interval of a long run, or {_TOO_SHORT} where this run is too short to say."
        )
    return table(["latency", *(_STATISTICS[key] for key in shown)], rows, caption)


def _turn_table(summary: Mapping[str, Any]) -> Markup:
    """A row per turn of all sessions, later ones together; nothing without sessions."""
    tail = tail_of(summary)
    shown = {"requests": "num_requests", "p50 TTFT, ms": "median_ttft_ms", f"{tail} TTFT, ms": f"{tail}_ttft_ms",
             "p50 TPOT, ms": "median_tpot_ms", f"{tail} TPOT, ms": f"{tail}_tpot_ms"}  # fmt: skip
    rows = []
    for turn in summary.get("turns") or ():
        numbers = [number_cell(turn.get(key)) for key in shown.values()]
        hits = turn.get("prefix_cache_hit_rate")
        span = f"{turn['first']}" if turn["first"] == turn["last"] else f"{turn['first']} to {turn['last']}"
        rows.append([Cell(span), *numbers, Cell(percent(hits), numeric(hits))])
    text = (
        f"{summary.get('completed_sessions') or 0:,} of {summary.get('num_sessions') or 0:,} sessions were served "
        f"whole. From the first arrival to the last answer they took {_shown(summary, 'median_session_s')} s in the "
        f"median and {_shown(summary, f'{tail}_session_s')} s at {tail}; half of them found at least "
        f"{percent(summary.get('median_session_hit_rate'))} of their prompt tokens cached."
    )
    return table(["turn", *shown, "cache hits"], rows, text)


def _around(summary: Mapping[str, Any], key: str) -> str:
    """The interval of a statistic, nothing for one without intervals."""
    if not is_known(summary.get(key)) or f"{key}_low" not in summary:
        return ""
    return interval(summary, key) or _TOO_SHORT


def _facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    total = f"{_shown(summary, 'total_token_throughput')} tok/s with prompts"
    failures = [f"{summary[key]:,} {key}" for key in ("rejected", "aborted", "unfinished") if summary.get(key)]
    requests = f"{summary.get('completed') or 0:,} of {summary.get('num_prompts') or 0:,} finished"
    phases = [
        f"{_shown(summary, key)} s {name}"
        for key, name in (("arrival_window_s", "of arrivals"), ("ramp_up_s", "ramp-up"), ("drain_s", "drain"))
        if is_known(summary.get(key))
    ]
    preempted = f"{_shown(summary, 'preemptions')}, {_shown(summary, 'recomputed_tokens')} tokens recomputed"
    batch = f"{_shown(summary, 'mean_batch_size')} sequences and {_shown(summary, 'mean_batch_tokens')} tokens"
    found = f"{percent(summary.get('prefix_cache_hit_rate'))} of prompt tokens found"
    if summary.get("prompts_share") is False and not summary.get("prefix_cache_hit_rate"):
        found += ", as no prompts of this trace begin alike"
    return [
        ("Throughput", f"{_shown(summary, 'request_throughput')} requests/s · {total}"),
        ("Requests", " · ".join([requests, *failures])),
        ("Time", " · ".join([f"{_shown(summary, 'duration')} s", *phases])),
        ("Prefix cache", found),
        ("Preemptions", preempted),
        ("Steps", f"{_shown(summary, 'num_steps')} · mean {batch}"),
        ("Cost model", str(summary.get("cost_model") or summary.get("cost_source") or "unknown")),
        *([("KV pool", str(summary["kv_pool"]).removeprefix("KV pool: "))] if summary.get("kv_pool") else []),
    ]


def _warnings(summary: Mapping[str, Any]) -> list[str]:
    found = []
    if summary.get("num_excluded") and summary.get("num_prompts"):
        found.append(f"{summary['num_excluded']:,} requests outside the warm-up/drain window are left out of latencies")
    found += [
        f"{rows:,} rows of the trace were skipped: {why}" for why, rows in (summary.get("bad_rows") or {}).items()
    ]
    return [*found, *map(str, summary.get("notes") or ())]


def _shown(summary: Mapping[str, Any], key: str) -> str:
    return number(numeric(summary.get(key)))
