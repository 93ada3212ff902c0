"""Recordings of agents, with the keys and the nesting that the tools write."""

from __future__ import annotations

import json
from typing import Any


def call(t: float, prompt: int, output: int, ids: list[int], api: float, think: float = 0.0) -> dict[str, Any]:
    more = {"input_types": ["text"], "output_types": ["text", "tool_use"], "stop": "tool_use", "api_time": api}
    return {
        "t": t,
        "type": "n",
        "model": "m",
        "in": prompt,
        "out": output,
        "hash_ids": ids,
        **more,
        "think_time": think,
    }


WEKA: dict[str, Any] = {
    "id": "trace_0001", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "tool_tokens": 64,
    "system_tokens": 0, "totals": {},
    "requests": [
        call(0.0, 130, 20, [1, 2], 2.0),
        {"t": 3.0, "type": "subagent", "agent_id": "agent_001", "subagent_type": "Explore", "duration_ms": 9000,
         "total_tokens": 1, "tool_use_count": 1, "status": "completed", "models": ["m"], "tool_tokens": 0,
         "system_tokens": 0, "requests": [call(0.0, 70, 5, [9], 1.0), call(4.0, 90, 5, [9], 2.0, 3.0)]},
        call(4.0, 192, 8, [1, 2, 3], 1.0, 2.0),
        call(12.0, 256, 9, [1, 2, 3, 4], 1.0, 7.0),
    ],
}  # fmt: skip


def span(name: str, start: str, end: str, said: list[tuple[str, str]], answer: str, **usage: int) -> dict[str, Any]:
    messages = json.dumps([{"role": role, "content": text} for role, text in said])
    tokens = {f"gen_ai.usage.{key}": value for key, value in usage.items()}
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": messages, "gen_ai.output.text": answer}
    times = {"start_time": f"2026-02-25T10:00:{start}", "end_time": f"2026-02-25T10:00:{end}"}
    return {"trace_id": "a", "span_id": name, "name": "chat gpt-4", **times, "attributes": {**attributes, **tokens}}


OTEL = {
    "trace_id": "a",
    "spans": [
        {"span_id": "tool", "name": "execute_tool", "start_time": "x", "attributes": {}},
        span("plan", "00.0", "02.0", [("user", "plan")], "two parts", prompt_tokens=50, completion_tokens=10),
        span("left", "02.5", "04.0", [("user", "left half of it")], "left", input_tokens=20, output_tokens=4),
        span("right", "03.0", "05.0", [("user", "right half of it")], "right", input_tokens=21, output_tokens=4),
        span("join", "06.0", "09.0",
             [("user", "plan"), ("assistant", "two parts"), ("user", ""),
              ("assistant", "left"), ("assistant", "right")],
             "done" * 10, prompt_tokens=90),
    ],
}  # fmt: skip


def tracelab(session: str, number: int, tokens: tuple[int, int, int], *events: tuple[str, str]) -> dict[str, Any]:
    total, prefix, output = tokens
    timed = [{"event_type": kind, "timestamp": f"2026-06-01T05:40:{time}Z", "source": "s"} for kind, time in events]
    ids = {"provider": "claude", "session_id": session, "round_index": number, "model": "m"}
    lengths = {"input_tokens_total": total, "prefix_tokens": prefix, "newly_append_tokens": total - prefix}
    return {**ids, **lengths, "output_tokens": output, "timing_events": timed, "tools": []}


TRACELAB = [
    tracelab("claude:1", 0, (300, 128, 40), ("user_message", "20.0"), ("text", "23.0"), ("tool_call", "24.0")),
    tracelab("claude:1", 1, (400, 300, 10), ("tool_result", "24.5"), ("tool_result", "26.0"), ("text", "29.0")),
    tracelab("claude:2", 0, (200, 0, 5), ("user_message", "21.0"), ("text", "22.0")),
    tracelab("claude:1", 2, (150, 64, 7), ("user_message", "59.0")),
]

AIPERF_TURNS = [
    {"session_id": "s", "input_length": 600, "output_length": 40, "timestamp": 0.0, "hash_ids": [1, 2]},
    {"session_id": "t", "input_length": 520, "output_length": 4, "timestamp": 5.0, "hash_ids": [1, 3]},
    {"session_id": "s", "input_length": 500, "output_length": 30, "delay": 2000.0, "hash_ids": [9]},
]
