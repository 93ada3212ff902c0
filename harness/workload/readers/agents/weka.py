"""Traces of coding agents (callanjfox/kv-cache-tester, "Weka"): a JSON object per session, with hash ids of the
prompts' blocks, times, and sub-agents."""

from __future__ import annotations

from typing import Any

from harness.errors import TraceError
from harness.workload.readers.agents.calls import EARLY_S, Call, documents, number, trace_of_calls
from harness.workload.rows.sieve import RowRules
from harness.workload.trace import Trace

_KEYS = ("id", "block_size", "hash_id_scope", "requests")
_SCOPE = 1 << 40  # more ids than a session has


def read(path: str, rules: RowRules) -> Trace:
    """Reads a session or a folder of them. A request waits for the one before it, and for the sub-agents that had ended
    by then; a sub-agent starts after the request before it. All sessions begin at time 0.

    Raises:
        TraceError: the file cannot be read, is of another format, or has no usable row.
    """
    calls: list[Call] = []
    sizes: list[Any] = []  # those that differ
    for session, document in enumerate(documents(path, _KEYS, "a Weka trace")):
        if (size := document.get("block_size")) not in sizes:
            sizes.append(size)
        scope = session * _SCOPE if document.get("hash_id_scope") == "local" else 0
        calls += _Session(session, scope).read(document.get("requests"))
        if rules.limit is not None and not rules.with_times and len(calls) >= rules.limit:
            break  # what is left are later sessions
    if len(sizes) > 1 or not all(type(size) is int and size > 0 for size in sizes):
        raise TraceError(f"{path}: block_size must be one number of tokens, 1 or more, for all sessions")
    return trace_of_calls(calls, path, rules, "weka", block_size=next(iter(sizes), None))


class _Session:
    def __init__(self, session: int, scope: int) -> None:
        self._session = session
        self._scope = scope

    def read(self, requests: Any, offset_s: float = 0.0, parent: Call | None = None) -> list[Call]:
        """The calls of an agent, whose first one waits for `parent`, and of its sub-agents."""
        calls: list[Call] = []
        last, running = (
            parent,
            list[Call](),
        )  # the agent's last call, and the last ones of sub-agents not waited for yet
        for each in requests if isinstance(requests, list) else ():
            if not isinstance(each, dict):
                continue
            if each.get("type") == "subagent":
                inner = self.read(each.get("requests"), offset_s + self._offset(each), last)
                running += inner[-1:]
                calls += inner
                continue
            call = self._call(each, offset_s)
            done = [sub for sub in running if sub.end_s <= call.start_s + EARLY_S]
            running = [sub for sub in running if sub not in done]
            call.waits_for = [*self._before(last, call), *done]
            if last is parent:
                call.think_time = None  # the file counts from nothing
            calls.append(call)
            last = call
        return calls

    def _call(self, request: dict[str, Any], offset_s: float) -> Call:
        start_s = offset_s + (number(request.get("t")) or 0.0)
        ids = request.get("hash_ids")
        hash_ids = [each + self._scope if type(each) is int else each for each in ids] if isinstance(ids, list) else ids
        return Call(
            self._session,
            start_s,
            start_s + (number(request.get("api_time")) or 0.0),
            request.get("in"),
            request.get("out"),
            think_time=number(request.get("think_time")),
            hash_ids=hash_ids,
        )

    @staticmethod
    def _before(last: Call | None, call: Call) -> list[Call]:
        """What a call after `last` waits for: a call that began while `last` ran waits for what `last` waited for."""
        if last is None:
            return []
        return [last] if last.end_s <= call.start_s + EARLY_S else list(last.waits_for)

    @staticmethod
    def _offset(marker: dict[str, Any]) -> float:
        """Times of a sub-agent's requests are those of the session, or count from its start."""
        begin_s = number(marker.get("t")) or 0.0
        inner = marker.get("requests")
        first = inner[0] if isinstance(inner, list) and inner and isinstance(inner[0], dict) else {}
        return begin_s if (number(first.get("t")) or 0.0) < begin_s else 0.0
