"""Spans of OpenTelemetry for generative AI, as inference-perf replays them: a JSON object with spans per session."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from functools import reduce
from heapq import heappop, heappush
from operator import or_
from typing import Any

from harness.errors import TraceError
from harness.workload.readers.agents.calls import Call, documents, moment, trace_of_calls
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

    def __init__(self, session: int, start_s: float, end_s: float, attributes: dict[str, Any]) -> None:
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
        self.call = Call(session, start_s, max(start_s, end_s), prompt, output)
        self.before = 0  # all calls that this one waited for, and that those waited for: a bit for each by its number


def _session(path: str, session: int, spans: Any) -> list[_Span]:
    found = []
    for span in spans if isinstance(spans, list) else ():
        attributes = span.get("attributes") if isinstance(span, dict) else None
        if isinstance(attributes, dict) and attributes.get(_INPUT) and _is_chat(span, attributes):
            start_s, end_s = moment(span.get("start_time")), moment(span.get("end_time"))
            if start_s is None or end_s is None:
                raise TraceError(f"{path}: span {span.get('span_id')} has no start_time and end_time")
            found.append(_Span(session, start_s, end_s, attributes))
    found.sort(key=lambda each: each.call.start_s)
    _connect(found)
    return found


def _connect(spans: Sequence[_Span]) -> None:
    """Let each span of a session, in order of their starts, wait for those that it needs."""
    running: list[tuple[float, int]] = []  # a heap of ends with numbers of spans
    answered: dict[str, list[int]] = defaultdict(list)  # spans that have ended, by what they answered
    last, last_end_s = -1, -math.inf
    for number, each in enumerate(spans):
        while running and running[0][0] <= each.call.start_s:
            end_s, ended = heappop(running)
            answered[spans[ended].answer].append(ended)
            last, last_end_s = (ended, end_s) if end_s > last_end_s else (last, last_end_s)
        heard = [i for text in each.said for i in answered.get(text, ())]
        heard.sort(key=lambda i: (-len(spans[i].said), i))  # the prompt goes on from that of most turns
        needed = list(dict.fromkeys([*heard, *([last] if last >= 0 else [])]))
        known = reduce(or_, (spans[i].before for i in needed), 0)
        waits_for = [i for place, i in enumerate(needed) if not place or not known >> i & 1]
        each.before = reduce(or_, (1 << i for i in needed), known)
        each.call.waits_for = [spans[i].call for i in waits_for]
        heappush(running, (each.call.end_s, number))


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
