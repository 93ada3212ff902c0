"""The servers of a fleet on the page of a run: what each is, what it got, and the lines that start it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from harness.figures.pages.elements import Cell, Markup, code, table
from harness.figures.pages.words import number_cell, numeric
from harness.results.summary import gibibytes, number, percent

_OF_SERVERS: dict[str, tuple[str, Callable[[Any], str] | None]] = {  # titles, keys of the summary, how they are shown
    "server": ("server", None),
    "role": ("role", lambda role: str(role or "serve")),
    "GPUs": ("gpus", lambda gpus: str(gpus or "")),
    "requests": ("num_requests", None),
    "p50 TTFT, ms": ("median_ttft_ms", None),
    "output tok/s": ("output_throughput", None),
    "cache hits": ("prefix_cache_hit_rate", percent),
    "KV cache in use": ("mean_kv_cache_usage", percent),
    "running": ("mean_running", None),
    "waiting": ("mean_waiting", None),
    "preemptions": ("preemptions", None),
}


def server_table(summary: Mapping[str, Any]) -> Markup:
    """A row per server of a fleet; nothing for one server."""
    servers = summary.get("servers") or ()
    gpus = _gpus_of(summary)
    heads = {head: told for head, told in _OF_SERVERS.items() if gpus or head != "GPUs"}
    rows = [
        [number_cell(row.get(key)) if show is None else Cell(show(row.get(key)), numeric(row.get(key)))
         for key, show in heads.values()]
        for row in ({**server, "gpus": gpus.get(server["server"])} for server in servers)
    ]  # fmt: skip
    return table(list(heads), rows, _about(summary))


def start_lines(summary: Mapping[str, Any]) -> Markup:
    """The command lines that start the servers of a fleet; nothing for one server."""
    return code(str(summary.get("vllm_command") or "")) if summary.get("servers") else Markup("")


def _about(summary: Mapping[str, Any]) -> str:
    text = f"Behind a router: {summary.get('router')}."
    if (ahead := summary.get("request_imbalance")) is not None:
        text += f" The server with the most requests got {number(ahead)} times as many as the mean of its role."
    if summary.get("handed_over"):
        prompt, after, moved = (
            number(summary.get(f"mean_{name}_ms")) for name in ("prefill", "handover", "kv_transfer")
        )
        text += (
            f" {summary['handed_over']:,} prompts were handed over: {prompt} ms each, {after} ms from there to the "
            f"first token, of which {moved} ms for its KV (means)."
        )
        if summary.get("kv_transferred_bytes"):
            text += f" {gibibytes(summary['kv_transferred_bytes'])} of KV went over the network."
    return text


def _gpus_of(summary: Mapping[str, Any]) -> dict[int, str]:
    """What each server runs on, by its number, where servers differ."""
    return {
        place: f"{pool['num_gpus'] // len(pool['servers'])} × {pool['device']}"
        for pool in summary.get("pools") or ()
        for place in pool["servers"]
    }
