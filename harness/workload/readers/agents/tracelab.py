"""TraceLab (uw-syfi/TraceLab): JSON lines with a round of a coding agent, and how much of its prompt was cached."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

from harness.workload.readers.agents.calls import EARLY_S, LONGEST, Call, documents, moment, session_key, trace_of_calls
from harness.workload.rows.sieve import RowRules
from harness.workload.trace import Trace

BLOCK_SIZE = 64  # tokens; the trace has lengths of prefixes, no blocks

_KEYS = ("session_id", "round_index", "input_tokens_total", "prefix_tokens", "output_tokens", "timing_events")
_INPUTS, _OUTPUTS = ("user_message", "tool_result"), ("text", "reasoning", "tool_call")
_NOTE = f"prompts share what the provider found cached, in blocks of {BLOCK_SIZE}"
_BELOW = "/subagents/"  # in the id of a sub-agent's session, after that of its parent
_STARTS_AGENTS = ("Agent", "Task")  # tools
_START_S = 10.0  # within which a sub-agent starts after the call of its tool


@dataclass(eq=False)
class _Session:
    """An agent: its calls in order of time, and when it called the tools that start sub-agents, and had their answers.

    Public traces have other ids than those that tell whose sub-agents are whose, so the times of tools tell it.
    """

    id: Any
    project: str
    calls: list[Call] = field(default_factory=list)
    agents: list[tuple[float, float]] = field(default_factory=list)
    parent: _Session | None = None

    @property
    def root(self) -> _Session:
        return self if self.parent is None else self.parent.root


def read(path: str, rules: RowRules) -> Trace:
    """Reads a trace: a round is sent at its last input event, and ends at its last output event. Rounds without a time
    are left out. A sub-agent is of the session of its parent: its first round waits for the parent's last one before
    it, and the parent's first round after its end waits for its last one.

    Raises:
        TraceError: the file cannot be read, is of another format, or has no usable row.
    """
    rounds: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row, document in enumerate(documents(path, _KEYS, "a TraceLab trace")):
        rounds[session_key(document.get("session_id"), row)].append(document)
    new_ids = count()
    sessions = [_session(number, key, own, new_ids) for number, (key, own) in enumerate(rounds.items())]
    sessions = [session for session in sessions if session.calls]
    _find_parents(sessions)
    for session in sessions:
        if session.parent is not None:
            _hang_below(session, session.parent)
    num_found = sum(session.parent is not None for session in sessions)
    notes = [_NOTE, *([f"{num_found} sessions are of sub-agents, as ids or the times of tools say"] * bool(num_found))]
    calls = [call for session in sessions for call in session.calls]
    return trace_of_calls(calls, path, rules, "tracelab", block_size=BLOCK_SIZE, notes=notes)


def _session(number: int, key: Any, rounds: list[dict[str, Any]], new_ids: count[int]) -> _Session:
    found = _Session(key, str(rounds[0].get("project")))
    timed = [(times, each) for each in rounds if (times := _times(each)) is not None]
    last: Call | None = None
    for (start_s, end_s), each in sorted(timed, key=lambda pair: pair[0]):
        call = Call(number, start_s, end_s, each.get("input_tokens_total"), each.get("output_tokens"))
        call.waits_for = [last] if last is not None else []
        call.hash_ids = _ids(call.prompt, each.get("prefix_tokens"), last.hash_ids if last else [], new_ids)
        found.calls.append(call)
        found.agents += _agents(each.get("tools"))
        last = call
    return found


def _agents(tools: Any) -> Iterator[tuple[float, float]]:
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict) and tool.get("tool_name") in _STARTS_AGENTS:
            begin, end = moment(tool.get("emitted_at")), moment(tool.get("result_at"))
            if begin is not None and end is not None:
                yield begin, end


def _find_parents(sessions: list[_Session]) -> None:
    """By ids, or else the session that called a tool for an agent just before, and had its answer just after. Each call
    of a tool has one sub-agent at most, the one that started first."""
    by_id = {session.id: session for session in sessions}
    tools: dict[str, list[tuple[float, float, _Session]]] = defaultdict(list)  # by project
    for session in sessions:
        tools[session.project] += [(*times, session) for times in session.agents]
    for session in sorted(sessions, key=lambda each: each.calls[0].start_s):
        if isinstance(session.id, str) and _BELOW in session.id:
            parent = by_id.get(session.id.partition(_BELOW)[0])
            session.parent = parent if parent is not None and parent.root is not session else None
            continue
        start, end = session.calls[0].start_s, max(call.end_s for call in session.calls)
        fitting = [
            each
            for each in tools[session.project]
            if each[0] <= start <= each[0] + _START_S and end <= each[1] + EARLY_S and each[2].root is not session
        ]
        if fitting:
            nearest = max(fitting, key=lambda each: each[0])
            tools[session.project].remove(nearest)
            session.parent = nearest[2]


def _hang_below(session: _Session, parent: _Session) -> None:
    first, last = session.calls[0], max(session.calls, key=lambda call: call.end_s)
    before = [call for call in parent.calls if call.end_s <= first.start_s + EARLY_S and call.start_s < first.start_s]
    after = [call for call in parent.calls if call.start_s > max(last.end_s - EARLY_S, last.start_s)]
    first.waits_for = before[-1:]
    if after:
        after[0].waits_for.append(last)
    for call in session.calls:
        call.session = session.root.calls[0].session


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
