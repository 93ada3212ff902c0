"""The summary of a run in the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.results.measures.slo import LIMITED
from harness.results.measures.unserved import HEADING, unserved_text
from harness.results.statistics.latencies import percentile_name

_LATENCY_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL", "queue_time": "Queue time"}
_STATISTICS = {"mean": "mean", "median": "p50", "p90": "p90", "p99": "p99"}
_TOO_SHORT = "±?"  # half an interval is unknown, or ten times the value
_VERDICTS = {
    "stable": ("STABLE", "bold green"),
    "overloaded": ("OVERLOADED", "bold red"),
    "unclear": ("UNCLEAR", "bold yellow"),
}


def print_summary(summary: Mapping[str, Any], console: Console) -> None:
    """Print what `summarize` found: whether the run was simulated, latencies, throughput, memory, and warnings."""
    for part in (_headline(summary), _latency_table(summary), _facts_table(summary)):
        console.print(part)
        console.print()
    for warning in _warnings(summary):
        console.print(Text(f"! {warning}", style="yellow"))


def scheduler_text(summary: Mapping[str, Any]) -> str | None:
    """The name of the policy, or "vLLM" where vLLM has all scheduler settings of the servers."""
    line = summary.get("vllm_command") or ""  # with a comment on what vLLM has no flag for
    is_vllms = "vllm serve" in line and "scheduler." not in line.partition("not in vLLM")[2]
    return "vLLM" if is_vllms else summary.get("policy")


def _headline(summary: Mapping[str, Any]) -> Text:
    simulated = summary["simulated"]
    kind = ("SIMULATED", "bold cyan") if simulated else ("MEASURED", "bold green")
    told = [*(summary.get(key) for key in ("model", "device", "trace", "arrival")), scheduler_text(summary)]
    known = [str(each) for each in told if each]
    if summary.get("quantization") not in (None, "none"):
        known.insert(1, f"{summary['quantization']} weights")
    if summary["num_blocks"] is not None and not summary.get("pools"):
        known.append(f"{summary['num_blocks']:,} blocks of {summary['block_size']}")
    if (count := summary.get("num_servers") or 1) > 1:
        known.append(f"{count} servers, {summary['router']}")
    text = Text.assemble(kind, f"  {' · '.join(known)}")
    if not summary["complete"]:
        left = f"{summary['unfinished']:,} of {summary['num_prompts']:,} requests unfinished"
        reason = summary.get("ended_early") or "interrupted"
        text.append(f"\nINCOMPLETE: {reason}, {left}", style="bold red")
    if unserved := unserved_text(summary):
        text.append("\n").append(HEADING, style="bold red").append(f"  {unserved}")
    if (verdict := summary.get("verdict")) in _VERDICTS:
        text.append("\n").append(*_VERDICTS[verdict]).append(f"  {_explained(summary)}")
    return text


def _explained(summary: Mapping[str, Any]) -> str:
    """The verdict in words."""
    load = summary.get("offered_load")
    share = "" if load is None else f"the rate is about {load:.0%} of capacity"
    if summary["verdict"] != "unclear":
        return share
    if not summary["complete"]:
        return "the run ended too early to tell whether it was overloaded"
    if summary.get("sampled_steps"):
        return "the queue does not grow all the time; what share of capacity this is, a client cannot tell"
    return f"{share}: too near to tell whether it is overloaded" if share else "too few requests to tell the load"


def _latency_table(summary: Mapping[str, Any]) -> Table:
    """Values and, unless the run was overloaded, half of their 95 % intervals in percent."""
    shown = [key for key in _STATISTICS if f"{key}_ttft_ms" in summary]
    bounded, told = summary.get("verdict") != "overloaded", set[str]()
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("Latency, ms", style="bold")
    for key in shown:
        table.add_column(_STATISTICS[key], justify="right", min_width=9)
        table.add_column("", style="dim", min_width=5)
    for name, label in _LATENCY_NAMES.items():
        row: list[str] = []
        for key in shown:
            row += [number(summary[f"{key}_{name}_ms"]), _uncertainty(summary, f"{key}_{name}_ms") if bounded else ""]
        table.add_row(label, *row)
        told |= set(row[1::2]) - {""}
    notes = ["±: half of the 95 % interval for a long run"] if told - {_TOO_SHORT} else []
    notes += [f"{_TOO_SHORT}: the run is too short to say"] if _TOO_SHORT in told else []
    if notes:
        table.caption, table.caption_justify = "; ".join(notes), "left"
    return table


def _uncertainty(summary: Mapping[str, Any], key: str) -> str:
    """Half of the width of the interval around a value, in percent of it; nothing for statistics without intervals."""
    value, low, high = summary[key], summary.get(f"{key}_low"), summary.get(f"{key}_high")
    if not value or f"{key}_low" not in summary:
        return ""
    if low is None or high is None:
        return _TOO_SHORT
    half = (high - low) / 2 / value
    if half >= 10:
        return _TOO_SHORT
    return f"±{half:.0%}" if half >= 0.01 else f"±{half:.1%}"


def _facts_table(summary: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in _facts(summary):
        table.add_row(label, text)
    return table


def _facts(summary: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    def show(key: str) -> str:
        return number(summary[key])

    if summary.get("offered_rate") is not None:
        rates = f"{show('offered_rate')} requests/s offered · {show('served_rate')} served"
        yield "Load", f"{rates} during {show('arrival_window_s')} s of arrivals"
        yield "Edges", f"{show('ramp_up_s')} s of ramp-up · {show('drain_s')} s of drain after the last arrival"
    throughput = [f"{show('output_throughput')} output tok/s", f"{show('total_token_throughput')} tok/s in all"]
    yield "Throughput", " · ".join([*throughput, f"{show('request_throughput')} requests/s"])
    yield from _slo(summary)
    failures = [f"{summary[key]:,} {key}" for key in ("rejected", "aborted", "unfinished") if summary[key]]
    counts = [f"{summary['completed']:,} of {summary['num_prompts']:,} finished in {show('duration')} s", *failures]
    yield "Requests", " · ".join(counts)
    if summary.get("num_sessions"):
        times = f"{show('mean_session_s')} s from first arrival to last answer, median {show('median_session_s')} s"
        served = f"{summary['completed_sessions']:,} of {summary['num_sessions']:,} served whole"
        yield "Sessions", f"{served} · {show('mean_session_requests')} requests each · {times}"
    yield from _servers(summary)
    usage = f"{percent(summary['mean_kv_cache_usage'])} mean · {percent(summary['max_kv_cache_usage'])} peak"
    if summary["saved_block_share"]:
        usage += f" · sharing saves {percent(summary['saved_block_share'])} of blocks"
    yield "KV cache", usage
    hits = f"{percent(summary['prefix_cache_hit_rate'])} of prompt tokens"
    if summary.get("prompts_share") is False and not summary["prefix_cache_hit_rate"]:
        hits += ", as no prompts of this trace begin alike"
    for tier in ("host", "disk"):
        if summary[f"{tier}_hit_rate"]:
            hits += f" · {percent(summary[f'{tier}_hit_rate'])} from the {tier}"
    yield "Cache hits", hits
    yield "Preemptions", _preemptions(summary)
    if summary["blocks_to_host"] or summary["blocks_from_host"]:
        moved = f"{summary['blocks_to_host']:,} blocks out · {summary['blocks_from_host']:,} back"
        waited = f"steps waited {show('transfer_wait_s')} s"
        if summary["parked_s"]:
            waited += f", requests {show('parked_s')} s in sum"
        yield "Host memory", f"{moved} · {waited}"
    if summary.get("drafted_tokens"):
        tokens = f"{show('mean_tokens_per_decode')} tokens per decode and step"
        yield "Speculation", f"{percent(summary['draft_acceptance_rate'])} of drafted tokens accepted · {tokens}"
    batch = f"{show('mean_batch_size')} sequences and {show('mean_batch_tokens')} tokens"
    if summary["num_steps"] is not None:
        yield "Steps", f"{summary['num_steps']:,} · mean {batch}"
    elif summary["mean_running"] is not None:
        yield "Server", f"{show('mean_running')} requests running and {show('mean_waiting')} waiting on average"
    if cost := summary.get("cost_model"):
        yield "Cost model", cost


def _preemptions(summary: Mapping[str, Any]) -> str:
    count = summary["preemptions"]
    if not count:
        return "none" if count == 0 else number(count)
    if summary["preempted_requests"] is None:
        return f"{count:,}"
    num_hit = summary["preempted_requests"]
    hit = f"{num_hit:,} request{'s' * (num_hit != 1)} hit · {summary['recomputed_tokens']:,} tokens recomputed"
    by_kind = {kind: summary[f"{kind}_preemptions"] for kind in ("swapped", "partial")}
    return f"{count:,} · {hit}" + "".join(f" · {count:,} {kind}" for kind, count in by_kind.items() if count)


def _servers(summary: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """How evenly the servers of a fleet were used."""
    if not (servers := summary.get("servers")):
        return
    alike: Mapping[str, Any] = {"role": "serve", "servers": range(len(servers))}
    for pool in summary.get("pools") or [alike]:
        name = {"prefill": "For prompts", "decode": "For decodes"}.get(pool["role"], "Servers")
        own = [servers[number] for number in pool["servers"]]
        each = " each" * (len(own) > 1)
        gpus = f" with {pool['num_gpus'] // len(own)} {pool['device']}{each}" if "device" in pool else ""
        yield name, f"{len(own)}{gpus}: {_of_servers(own, summary['num_prompts'])}"
    if summary.get("server_counts"):
        cost = "" if summary["cost"] is None else f" · ${number(summary['cost'])}"
        yield (
            "Over time",
            f"{number(summary['mean_servers'])} servers open on average, "
            f"up to {summary['max_paid_servers']} paid for · "
            f"{number(summary['gpu_hours'])} GPU hours{cost} · {summary['num_retried']} requests begun anew",
        )
    if summary.get("handed_over"):
        yield (
            "Hand-over",
            (
                f"{summary['handed_over']:,} prompts, {number(summary['mean_prefill_ms'])} ms each · "
                f"{number(summary['mean_handover_ms'])} ms from there to the first token, "
                f"{number(summary['mean_kv_transfer_ms'])} of them for the KV"
                f"{_kv_transferred(summary)}"
            ),
        )


def gibibytes(size: float) -> str:
    return f"{number(size / (1 << 30))} GiB"


def _kv_transferred(summary: Mapping[str, Any]) -> str:
    moved = summary.get("kv_transferred_bytes")
    return f" · {gibibytes(moved)} of KV moved" if moved else ""


def _of_servers(servers: Sequence[Mapping[str, Any]], num_requests: int) -> str:
    shares = [server["num_requests"] / max(1, num_requests) for server in servers]
    texts = [f"{_span(shares, percent)} of requests{' each' * (len(servers) > 1)}"]
    for key, noun, show in (("mean_running", "running", number), ("prefix_cache_hit_rate", "cache hits", percent)):
        values = [server[key] for server in servers if server[key] is not None]
        if values and max(values):
            texts.append(f"{noun} {_span(values, show)}")
    return " · ".join(texts)


def _span(values: Sequence[float], show: Callable[[float], str]) -> str:
    least, most = show(min(values)), show(max(values))
    return least if least == most else f"{least} to {most}"


def _slo(summary: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """A line for each limit: what was reached, how many requests are within; and whether the run meets all."""
    if summary["goodput_share"] is None:
        return
    percentile = percentile_name(summary["slo_percentile"])
    for name in LIMITED:
        limit, reached = summary[f"slo_{name}_ms"], summary.get(f"{percentile}_{name}_ms")
        if limit is None:
            continue
        attained = summary[f"slo_{name}_attainment"]
        is_missed = bool(unserved_text(summary)) and (attained or 0.0) < summary["slo_percentile"] / 100
        passed = "FAIL" if is_missed or (reached is not None and reached > limit) else "pass"
        within = f"{percent(attained)} of requests within"
        yield f"SLO {_LATENCY_NAMES[name]}", f"{passed} · {percentile} {number(reached)} of {limit:g} ms · {within}"
    met = {True: "met", False: "not met", None: "not known"}[summary["slo_met"]]
    reasons = ["overloaded"] if summary.get("verdict") == "overloaded" else []
    reasons += [unserved] if (unserved := unserved_text(summary)) and not summary["slo_met"] else []
    because = f" ({', '.join(reasons)})" if reasons else ""
    good = f"{percent(summary['goodput_share'])} of requests · {number(summary['request_goodput'])} requests/s"
    yield "Goodput", f"{good} · SLO {met}{because}"


def _warnings(summary: Mapping[str, Any]) -> Iterable[str]:
    if summary["num_excluded"] and summary["num_prompts"]:
        window = f"{number(summary['window_start_s'])} to {number(summary['window_end_s'])} s"
        yield f"{summary['num_excluded']:,} requests are left out: only arrivals from {window} count"
    for reason, count in (summary.get("bad_rows") or {}).items():
        yield f"{count:,} rows of the trace were skipped: {reason}"
    if (summary.get("max_replay_lag_ms") or 0) > 0:
        yield f"arrivals were handed over late by up to {number(summary['max_replay_lag_ms'])} ms"
    yield from summary.get("notes") or ()


def number(value: float | None) -> str:
    """A number with as many digits as a reader needs; a dash for what is not known."""
    if value is None or math.isnan(value):
        return "–"
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.2g}"


def percent(share: float | None) -> str:
    """A share in percent; a dash for what is not known."""
    return "–" if share is None or math.isnan(share) else f"{share:.1%}"
