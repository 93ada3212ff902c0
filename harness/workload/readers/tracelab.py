"""TraceLab (uw-syfi/TraceLab): JSON lines with a round of a coding agent, and how much of its prompt was cached."""

from __future__ import annotations

from collections import defaultdict
from itertools import count, islice
from typing import Any

from harness.workload.readers.calls import LONGEST, Call, documents, moment, session_key, trace_of_calls
from harness.workload.rows.sieve import RowRules
from harness.workload.trace import Trace

BLOCK_SIZE = 64  # tokens; the trace has lengths of prefixes, no blocks

_KEYS = ("session_id", "round_index", "input_tokens_total", "prefix_tokens", "output_tokens", "timing_events")
_INPUTS, _OUTPUTS = ("user_message", "tool_result"), ("text", "reasoning", "tool_call")
_NOTE = f"prompts share what the provider found cached, in blocks of {BLOCK_SIZE}; sub-agents are sessions of their own"


def read(path: str, rules: RowRules) -> Trace:
    """Reads a trace: a round is sent at its last input event, and ends at its last output event. Rounds without a time
    are left out.

    Raises:
        TraceError: the file cannot be read, is of another format, or has no usable row.
    """
    rounds: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row, document in enumerate(documents(path, _KEYS, "a TraceLab trace")):
        rounds[session_key(document.get("session_id"), row)].append(document)
    new_ids = count()
    calls: list[Call] = []
    for session, own in enumerate(rounds.values()):
        timed = [(times, each) for each in own if (times := _times(each)) is not None]
        last: Call | None = None
        for (start_s, end_s), each in sorted(timed, key=lambda pair: pair[0]):
            call = Call(session, start_s, end_s, each.get("input_tokens_total"), each.get("output_tokens"))
            call.waits_for = [last] if last is not None else []
            call.hash_ids = _ids(call.prompt, each.get("prefix_tokens"), last.hash_ids if last else [], new_ids)
            calls.append(call)
            last = call
    return trace_of_calls(calls, path, rules, "tracelab", block_size=BLOCK_SIZE, notes=[_NOTE])


def _ids(prompt: Any, prefix: Any, earlier: list[int] | None, new_ids: count[int]) -> list[int] | None:
    """Ids of a prompt's full blocks: those of the prompt before it in the prefix that was cached, and new ones.

    None for a prompt that is too long.
    """
    if type(prompt) is int and prompt > LONGEST:
        return None
    total, cached = ((each if type(each) is int and each > 0 else 0) // BLOCK_SIZE for each in (prompt, prefix))
    shared = (earlier or [])[: min(total, cached)]
    return [*shared, *islice(new_ids, total - len(shared))]


def _times(document: dict[str, Any]) -> tuple[float, float] | None:
    """When a round was sent and when its answer ended, in s; None where it has no time."""
    events = document.get("timing_events")
    found: dict[str, list[float]] = defaultdict(list)
    for event in events if isinstance(events, list) else ():
        if isinstance(event, dict) and (time := moment(event.get("timestamp"))) is not None:
            found[str(event.get("event_type"))].append(time)
    inputs = [time for kind in _INPUTS for time in found[kind]]
    outputs = [time for kind in _OUTPUTS for time in found[kind]]
    if not inputs and not outputs:
        return None
    start_s = max(inputs) if inputs else min(outputs)
    return start_s, max([start_s, *outputs])
