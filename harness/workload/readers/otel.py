"""Spans of OpenTelemetry for generative AI, as inference-perf replays them: a JSON object with spans per session."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from harness.errors import TraceError
from harness.workload.readers.calls import Call, documents, trace_of_calls
from harness.workload.rows.sieve import RowRules
from harness.workload.trace import Trace

_INPUT = "gen_ai.input.messages"
_OUTPUT_TEXTS = ("gen_ai.output.text", "gen_ai.completion", "gen_ai.output")
_PROMPT_TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT_TOKENS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_CHARACTERS = 4  # per token, where the span does not count them, as inference-perf assumes


def read(path: str, rules: RowRules) -> Trace:
    """Reads a session or a folder of them. A call waits for those whose answers are among its messages, and for the
    last that had ended before it began.

    Raises:
        TraceError: the file cannot be read, is of another format, or has no usable row.
    """
    calls: list[Call] = []
    num_estimated = 0
    for session, document in enumerate(documents(path, ("spans",), "a trace of OpenTelemetry spans")):
        found = _session(path, session, document.get("spans"))
        calls += [each.call for each in found]
        num_estimated += sum(each.is_estimated for each in found)
    notes = (
        [f"{num_estimated} calls do not count their tokens: {_CHARACTERS} characters are one"] if num_estimated else []
    )
    return trace_of_calls(calls, path, rules, "otel", notes=notes)


class _Span:
    """A call of a model with its texts."""

    def __init__(self, session: int, span: dict[str, Any], attributes: dict[str, Any]) -> None:
        messages = _messages(attributes.get(_INPUT))
        self.said = {_text(each) for each in messages if each.get("role") == "assistant"} - {""}
        self.answer = next((str(attributes[key]) for key in _OUTPUT_TEXTS if attributes.get(key)), "") or "".join(
            map(_text, _messages(attributes.get("gen_ai.output.messages")))
        )
        prompt = next((attributes[key] for key in _PROMPT_TOKENS if attributes.get(key)), None)
        output = next((attributes[key] for key in _OUTPUT_TOKENS if attributes.get(key)), None)
        self.is_estimated = prompt is None or output is None
        prompt = prompt or max(1, sum(map(len, map(_text, messages))) // _CHARACTERS)
        output = output or max(1, len(self.answer) // _CHARACTERS)
        start_s, end_s = (_time(span, name).timestamp() for name in ("start_time", "end_time"))
        self.call = Call(session, start_s, max(start_s, end_s), prompt, output)
        self.before: set[int] = set()  # numbers of all calls that this one waited for, and that those waited for


def _session(path: str, session: int, spans: Any) -> list[_Span]:
    found = []
    for span in spans if isinstance(spans, list) else ():
        attributes = span.get("attributes") if isinstance(span, dict) else None
        if isinstance(attributes, dict) and attributes.get(_INPUT) and _is_chat(span, attributes):
            if any(pd.isna(_time(span, name)) for name in ("start_time", "end_time")):
                raise TraceError(f"{path}: span {span.get('span_id')} has no start_time and end_time")
            found.append(_Span(session, span, attributes))
    found.sort(key=lambda each: each.call.start_s)
    for number, each in enumerate(found):
        ended = [i for i, other in enumerate(found[:number]) if other.call.end_s <= each.call.start_s]
        heard = [i for i in ended if found[i].answer in each.said]
        heard.sort(key=lambda i: len(found[i].said), reverse=True)  # the prompt goes on from that of most turns
        last = max(ended, key=lambda i: found[i].call.end_s, default=None)
        needed = list(dict.fromkeys([*heard, *([] if last is None else [last])]))
        known = set[int]().union(*(found[i].before for i in needed))
        waits_for = [i for place, i in enumerate(needed) if not place or i not in known]
        each.before = known | set(needed)
        each.call.waits_for = [found[i].call for i in waits_for]
    return found


def _is_chat(span: dict[str, Any], attributes: dict[str, Any]) -> bool:
    return attributes.get("gen_ai.operation.name") == "chat" or str(span.get("name")).startswith("chat ")


def _messages(value: Any) -> list[dict[str, Any]]:
    """A list of messages, which attributes have as JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return []
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _text(message: dict[str, Any]) -> str:
    """The texts of a message, in one of the forms that conventions had."""
    content = message.get("content", message.get("parts"))
    if isinstance(content, list):
        return "".join(_text(part) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else str(message.get("text") or "")


def _time(span: dict[str, Any], name: str) -> pd.Timestamp:
    """A date with a time, or nanoseconds since 1970; NaT for anything else."""
    return pd.to_datetime(span.get(name), utc=True, errors="coerce")
