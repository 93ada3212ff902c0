"""What the traces of agents have in common: calls of a session that wait for each other, with recorded times."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from harness.errors import TraceError
from harness.workload.readers.own import frame
from harness.workload.rows.layout import Layout
from harness.workload.rows.sieve import RowRules
from harness.workload.rows.trace_files import file_head, open_trace
from harness.workload.trace import Trace

LONGEST = 1 << 24  # tokens of a prompt whose ids are made here: longer ones are damage, and would fill the memory
EARLY_S = 1.0  # by which a call may begin before the end of one that it waits for, as some times are whole seconds


@dataclass(eq=False)
class Call:
    """A request of a recording. Lengths and hash ids are as the file has them.

    Attributes:
        session: number of its session.
        start_s, end_s: when it was sent, and when its answer had ended.
        waits_for: what it needed, first the call whose prompt and answer its prompt begins with.
        think_time: s that the recording says it waited after that; None: as the times say.
    """

    session: int
    start_s: float
    end_s: float
    prompt: Any
    output: Any
    waits_for: list[Call] = field(default_factory=list)
    think_time: float | None = None
    hash_ids: Any = None

    @property
    def pause_s(self) -> float:
        """From the end of the last call that it waits for."""
        if not self.waits_for:
            return 0.0
        if self.think_time is not None and len(self.waits_for) == 1:
            return max(self.think_time, 0.0)
        return max(self.start_s - max(each.end_s for each in self.waits_for), 0.0)


def trace_of_calls(
    calls: Sequence[Call],
    path: str,
    rules: RowRules,
    name: str,
    *,
    block_size: int | None = None,
    notes: Sequence[str] = (),
) -> Trace:
    """The calls as a trace, each session in order of time; without times asked for, session after session.

    Raises:
        TraceError: no call is usable, or more are bad than the rules allow.
    """
    if not calls:
        raise TraceError(f"{path}: holds no request")
    calls = sorted(calls, key=lambda call: (call.session, call.start_s))
    number = {id(call): row for row, call in enumerate(calls)}
    columns: dict[str, Any] = {
        "request_id": range(len(calls)),
        "session_id": [call.session for call in calls],
        "arrival_time": [call.start_s for call in calls],
        "num_prompt_tokens": pd.Series([call.prompt for call in calls], dtype=object),
        "num_output_tokens": pd.Series([call.output for call in calls], dtype=object),
        "waits_for": [[number[id(each)] for each in call.waits_for] for call in calls],
        "think_time": [call.pause_s for call in calls],
    }
    if block_size is not None:
        columns["hash_ids"] = [
            whole_ids(call.hash_ids, call.prompt, block_size, -1 - row) for row, call in enumerate(calls)
        ]
    trace = frame.read(pd.DataFrame(columns), path, rules, Layout(hash_block_size=block_size), name=name)
    kept = [note for note in trace.notes if "request_id" not in note]
    return Trace(name, trace.rows, path, block_size, trace.bad_rows, (*kept, *notes))


def whole_ids(ids: Any, num_tokens: Any, block_size: int, own: int) -> Any:
    """The ids of a prompt's full blocks, with `own`, which no other prompt has, for a last block that is not full."""
    is_short = isinstance(ids, list) and isinstance(num_tokens, int) and len(ids) == num_tokens // block_size
    return [*ids, own] if is_short and num_tokens % block_size else ids


def documents(path: str, wanted: Sequence[str], what: str) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines, of a file with one object, or of all JSON files of a folder, by name.

    Raises:
        TraceError: a file cannot be read, or the first object lacks a wanted key.
    """
    folder = Path(path)
    files = sorted(folder.glob("*.json*")) if folder.is_dir() else [folder]
    if not files:
        raise TraceError(f"{path}: no JSON file in this folder")
    is_first = True
    for file in files:
        for document in _objects(str(file)):
            if is_first and not set(wanted) <= set(document):
                raise TraceError(f"{path}: not {what}: an object must have {', '.join(wanted)}")
            is_first = False
            yield document


def _objects(path: str) -> Iterator[dict[str, Any]]:
    file_head(path)
    with open_trace(path) as file:
        first = file.readline()
        try:
            is_lines = isinstance(json.loads(first), dict)
        except (ValueError, RecursionError):
            is_lines = False
        texts = [first, *file] if is_lines else [first + file.read()]
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            raise TraceError(f"{path}, line {number}: not JSON") from None
        if not isinstance(document, dict):
            raise TraceError(f"{path}, line {number}: not a JSON object")
        yield document


def session_key(value: Any, row: int) -> Any:
    """What a session is known by; the request in `row` is a session of its own where `value` can be no name."""
    return value if isinstance(value, str | int | float) else ("", row)


def number(value: Any) -> float | None:
    """A finite number of the file; None for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
    return float(value) if is_number else None


def moment(value: Any) -> float | None:
    """Seconds since 1970 of a date with a time, or of nanoseconds since then; None for anything else."""
    if not isinstance(value, str | int | float):
        return None
    if isinstance(value, str):
        with suppress(ValueError):  # much faster than pandas, which knows more forms
            date = datetime.fromisoformat(value)
            return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    time = pd.to_datetime(value, utc=True, errors="coerce")
    return None if pd.isna(time) else float(time.timestamp())
