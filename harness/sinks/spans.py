"""What happened to each request, as spans.

    chat <model>                        the request: arrival to last token; events: first token, preempted, swapped
      queue                             it waits to be admitted
      prefill, decode                   it runs; each further sample of the request has a decode of its own
      hand-over                         its KV goes from the server of its prompt to that of its decodes
      parked                            it waits for KV from the host, the disk or a store
      preempted, swapped                it gave way
      first token                       queue and prefill, where a client sees only when the first token came

Attributes follow the semantic conventions of OpenTelemetry for generative AI (gen_ai.*) as far as these go; the names
of others begin with twinserve. Times are seconds since the start of the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

_NAMES = {"waiting": "queue"}  # of states of `harness.record.span_log`, where they differ
_EVENTS = ("preempted", "swapped")
_OPERATIONS = {"chat": "chat", "completions": "text_completion"}
_OWN = (
    "request_id",
    "server",
    "prefill_server",
    "turn",
    "priority",
    "tenant",
    "num_preemptions",
    "num_recomputed_tokens",
)


@dataclass(frozen=True)
class Span:
    """A span, with those inside it.

    Attributes:
        events: names and times.
        error: why it failed; None where it did not.
    """

    name: str
    start_s: float
    end_s: float
    attributes: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[tuple[str, float], ...] = ()
    error: str | None = None
    inner: tuple[Span, ...] = ()


def request_spans(requests: pd.DataFrame, states: pd.DataFrame | None, summary: Mapping[str, Any]) -> Iterator[Span]:
    """The span of each request that arrived, in the order of the table.

    Args:
        states: what each sequence did when, as `harness.record.span_log` has it; None where that was not recorded.
        summary: of the run.
    """
    end_s = float(summary.get("run_time_s") or requests["finish_time"].max())
    parts = {} if states is None else dict(list(states.fillna({"end": end_s}).groupby("request_id", sort=False)))
    operation, model = _operation(summary.get("config") or {}), str(summary.get("model"))
    shared = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "twinserve",
        "gen_ai.request.model": model,
    }
    for row in requests.to_dict("records"):
        if not math.isnan(row["arrival_time"]):
            yield _request(row, parts.get(row["request_id"]), f"{operation} {model}", shared, end_s)


def _operation(config: Mapping[str, Any]) -> str:
    asked = (config.get("engine") or {}).get("api") or (config.get("frontend") or {}).get("endpoint")
    return _OPERATIONS.get(str(asked), "chat")


def _request(
    row: dict[Any, Any], states: pd.DataFrame | None, name: str, shared: Mapping[str, Any], run_s: float
) -> Span:
    start, is_over = row["arrival_time"], row["status"] != "unfinished"
    end = _known(row["finish_time"], start if is_over else run_s)
    inner = tuple(_seen_from_outside(row, end) if states is None else _states(row, states, end))
    events = [(each.name, each.start_s) for each in inner if each.name in _EVENTS]
    if not math.isnan(row["first_token_time"]):
        events.append(("first token", row["first_token_time"]))
    reason = row["error"] if isinstance(row["error"], str) else str(row["status"])
    error = None if row["status"] == "finished" else reason
    attributes = {**shared, **_attributes(row)} | ({"error.type": str(row["status"])} if error else {})
    return Span(name, start, max(start, end), attributes, tuple(sorted(events, key=lambda each: each[1])), error, inner)


def _attributes(row: Mapping[str, Any]) -> dict[str, Any]:
    num_sequences = row["num_sequences"]
    found = {
        "gen_ai.request.max_tokens": row["num_requested_tokens"] // num_sequences,
        "gen_ai.request.choice.count": num_sequences if num_sequences > 1 else None,
        "gen_ai.conversation.id": None if row.get("session_id") is None else str(row["session_id"]),
        "gen_ai.usage.input_tokens": row["num_prompt_tokens"],
        "gen_ai.usage.output_tokens": row["num_output_tokens"],
        "gen_ai.usage.cache_read.input_tokens": row["num_cached_tokens"],
        **{f"twinserve.{key}": row.get(key) for key in _OWN},
    }
    if row["status"] == "finished":
        is_whole = row["num_output_tokens"] >= row["num_requested_tokens"]
        found["gen_ai.response.finish_reasons"] = ["length" if is_whole else "stop"]
    known = {key: _plain(value) for key, value in found.items() if isinstance(value, list) or not pd.isna(value)}
    return known if math.isnan(row["ttft"]) else known | {"gen_ai.response.time_to_first_chunk": float(row["ttft"])}


def _states(row: Mapping[str, Any], states: pd.DataFrame, last_s: float) -> Iterator[Span]:
    for state, start, end, sequence in zip(
        states["state"], states["start"], states["end"], states["sequence"], strict=True
    ):
        is_handed_over = state == "parked" and start >= row.get("prefill_end_time", math.nan)
        name = "hand-over" if is_handed_over else _NAMES.get(state, state)
        attributes = {"twinserve.sequence": int(sequence)} if sequence else {}
        yield Span(name, start, max(start, min(end, last_s)), attributes)


def _seen_from_outside(row: Mapping[str, Any], end: float) -> Iterator[Span]:
    arrival, first = row["arrival_time"], row["first_token_time"]
    scheduled, has_token = row["first_scheduled_time"], not math.isnan(first)
    if math.isnan(scheduled):
        yield Span("first token" if has_token else "queue", arrival, _known(first, end))
    else:
        yield Span("queue", arrival, scheduled)
        yield Span("prefill", scheduled, _known(first, end))
    if has_token:
        yield Span("decode", first, max(first, end))


def _known(value: float, otherwise: float) -> float:
    return otherwise if math.isnan(value) else value


def _plain(value: Any) -> Any:
    """A value without numpy's types, which OpenTelemetry refuses; whole numbers of columns with gaps as integers."""
    value = value.item() if hasattr(value, "item") else value
    return int(value) if isinstance(value, float) else value
