"""Mutated trace files: every reader gives a valid trace or one line."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from harness.config import (
    ArrivalConfig,
    AzureTrace,
    BurstGptTrace,
    CsvTrace,
    JsonlTrace,
    MooncakeTrace,
    SessionsArrival,
    ShareGptTrace,
    TraceArrival,
)
from harness.config.schema.traffic.trace_files import BailianTrace, OtelTrace, ServeGenTrace, TraceLabTrace, WekaTrace
from harness.errors import ConfigError, TraceError
from harness.workload.arrivals import make_arrivals
from harness.workload.content import block_identities
from harness.workload.lines import continued_rows
from harness.workload.readers import load_trace
from harness.workload.trace import Trace
from simulator.quantities import MAX_TOKENS
from tests.harness.workload.readers.builders import (
    AZURE_2023,
    AZURE_2025,
    BURSTGPT_1,
    SERVEGEN,
    bailian_line,
    mooncake_line,
)
from tests.harness.workload.readers.recordings import AIPERF_TURNS, OTEL, TRACELAB, WEKA
from tests.mutations import mutants

MAX_SECONDS = 5


class Case(NamedTuple):
    kind: type
    form: str
    data: bytes
    keys: dict[str, Any] = {}


def json_lines(*records: str) -> bytes:
    return "".join(f"{{{record}}}\n" for record in records).encode()


LENGTHS = b"conversation_id,turn,input_tokens,output_tokens\n1,0,10,5\n1,1,20,5\n2,0,7,3\n"
CHATS = (
    b'[{"id": "a", "conversations": [{"from": "human", "value": "hello there"}, {"from": "gpt", "value": "hi"}]},\n'
    b'{"id": "b", "conversations": [{"from": "system", "value": "x"}, {"from": "user", "value": "1"}, '
    b'{"from": "assistant", "value": "2"}]}]'
)
CSV = b"arrival_time,num_prompt_tokens,num_output_tokens,priority,session_id,turn\n" + b"".join(
    b"%d.5,%d,3,0,%d,0\n" % (row, row + 1, row) for row in range(12)
)
NANOSECONDS = b";arrival_time;num_prompt_tokens;num_output_tokens;think_time\n" + b"".join(
    b"%d;17162000001201234%02d;%d;3;0.5\n" % (row, row, row + 1) for row in range(12)
)
TOKENS = json_lines(
    '"arrival_time": 0, "num_prompt_tokens": 2, "num_output_tokens": 1, "token_ids": [1, 2], "priority": 1',
    '"arrival_time": 0.5, "num_prompt_tokens": 1, "num_output_tokens": 9, "token_ids": [7], "priority": 0',
)
_HASHED = '"num_output_tokens": 1, "hash_block_size": 4, "session_id": 1, '
HASHED = json_lines(
    _HASHED + '"num_prompt_tokens": 5, "hash_ids": [1, 2], "turn": 0',
    _HASHED + '"num_prompt_tokens": 9, "hash_ids": [1, 2, 3], "turn": 1',
)
WAITS = json_lines(
    *(
        f'"request_id": {row}, "session_id": {row // 4}, "num_prompt_tokens": {5 + row}, "num_output_tokens": 2, '
        f'"waits_for": {[row - 1][: row % 4]}, "think_time": 0.5'
        for row in range(8)
    )
)


def lines_of(records: list[dict[str, Any]]) -> bytes:
    return "\n".join(map(json.dumps, records)).encode()


CASES = {
    "azure2023": Case(AzureTrace, "csv", AZURE_2023),
    "azure2025": Case(AzureTrace, "csv", AZURE_2025),
    "burstgpt": Case(BurstGptTrace, "csv", BURSTGPT_1),
    "csv": Case(CsvTrace, "csv", CSV),
    "lengths": Case(ShareGptTrace, "csv", LENGTHS, {"turns": "multi"}),
    "first_lengths": Case(ShareGptTrace, "csv", LENGTHS),
    "mooncake": Case(
        MooncakeTrace, "json_lines", b"".join(mooncake_line(row * 1000, 600, 5, [1, row]) for row in range(12))
    ),
    "bailian": Case(
        BailianTrace,
        "json_lines",
        b"".join(
            bailian_line(row, row - 3, row, (20 + row, 5), [1, row, 7][: -(-(20 + row) // 16)]) for row in range(12)
        ),
    ),
    "servegen": Case(ServeGenTrace, "csv", SERVEGEN),
    "nanoseconds": Case(CsvTrace, "csv", NANOSECONDS, {"time_unit": "ns", "delimiter": "semicolon"}),
    "window": Case(CsvTrace, "csv", CSV, {"window": (2, 9)}),
    "token_ids": Case(JsonlTrace, "json_lines", TOKENS),
    "hash_ids": Case(JsonlTrace, "json_lines", HASHED),
    "waits": Case(JsonlTrace, "json_lines", WAITS),
    "weka": Case(WekaTrace, "json", lines_of([WEKA])),
    "otel": Case(OtelTrace, "json", lines_of([OTEL])),
    "tracelab": Case(TraceLabTrace, "json_lines", lines_of(TRACELAB)),
    "aiperf": Case(MooncakeTrace, "json_lines", lines_of(AIPERF_TURNS)),
    "chats": Case(ShareGptTrace, "json", CHATS, {"turns": "multi"}),
    "first_chats": Case(ShareGptTrace, "json", CHATS),
}


def check_trace(trace: Trace) -> None:
    """Raises AssertionError unless the trace is what `Trace` promises, and arrivals and contents can be made of it."""
    table = trace.table
    assert table["request_id"].tolist() == list(range(len(table))) and len(table)
    for name in ("num_prompt_tokens", "num_output_tokens"):
        assert table[name].dtype == np.int64 and table[name].between(1, MAX_TOKENS).all()
    times = table["arrival_time"].to_numpy()
    if trace.has_times:
        assert np.isfinite(times).all() and times[0] == 0 and (np.diff(times) >= 0).all()
        check_arrivals(trace, TraceArrival())
    else:
        assert np.isnan(times).all()
    if "hash_ids" in table:
        assert trace.hash_block_size is not None and 1 <= trace.hash_block_size <= MAX_TOKENS
        expected = -(-table["num_prompt_tokens"] // trace.hash_block_size)
        assert [len(ids) for ids in table["hash_ids"]] == expected.tolist()
    if "token_ids" in table:
        assert [len(ids) for ids in table["token_ids"]] == table["num_prompt_tokens"].tolist()
    if (identities := block_identities(trace, 16, 1 << 20)) is not None and table["num_prompt_tokens"].max() < 1 << 20:
        for row in range(len(table)):
            identities(row).all()
    if "waits_for" in table:
        continued_rows(trace)
        check_arrivals(trace, SessionsArrival(rate=1.0, think_time="trace"))  # type: ignore[arg-type]
        sessions = table["session_id"].tolist()
        for row, waits in enumerate(table["waits_for"]):
            assert all(0 <= each < row and sessions[each] == sessions[row] for each in waits.tolist())
    assert all(isinstance(count, int) and count > 0 for count in trace.bad_rows.values())


def check_arrivals(trace: Trace, arrival: ArrivalConfig) -> None:
    try:
        make_arrivals(trace, arrival, np.random.default_rng(0))
    except ConfigError as error:
        assert "146 years" in str(error)


def run_cases(folder: Path, name: str, count: int) -> int:
    """Reads `count` mutants with each value of on_bad_row in turn; returns how many were read."""
    case, num_read = CASES[name], 0
    path = folder / "trace"
    for number, data in enumerate(mutants(case.data, case.form, count)):
        path.write_bytes(data)
        settings = case.kind(path=str(path), on_bad_row=("skip", "drop", "drop", "error")[number % 4], **case.keys)
        started = time.perf_counter()
        try:
            trace = load_trace(settings, seed=0, with_times=number % 5 > 0)
        except TraceError as error:
            assert str(error).startswith(str(path)) and str(error).isprintable(), (name, number, str(error))
            assert len(str(error)) < 2000 + len(str(path)), (name, number, str(error))
        except Exception as error:
            raise AssertionError(f"mutant {number} of {name}: {data[:300]!r}") from error
        else:
            check_trace(trace)
            num_read += 1
        assert time.perf_counter() - started < MAX_SECONDS, (name, number)
    return num_read


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sample(8)
def test_mutated_traces(tmp_path: Path, name: str) -> None:
    assert run_cases(tmp_path, name, 40) > 3


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_thousands_of_mutated_traces(tmp_path: Path, name: str) -> None:
    assert run_cases(tmp_path, name, 2000) > 100
