"""Public traces of conversations with hashes of their prompts: Qwen-Bailian and Baseten; and ServeGen's requests."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from harness.config import SessionsArrival
from harness.config.schema.traffic.trace_files import BailianTrace, BasetenTrace, ServeGenTrace
from harness.errors import TraceError
from harness.workload.arrivals import make_arrivals
from harness.workload.content import block_identities
from harness.workload.readers import load_trace
from harness.workload.trace import Trace
from tests.harness.workload.readers.builders import SERVEGEN, bailian_line


def shared(trace: Trace, first: int, second: int, block_size: int = 16) -> int:
    """Leading blocks that the contents of two rows have in common."""
    identities = block_identities(trace, block_size)
    assert identities is not None
    one, other = identities(first).all(), identities(second).all()
    pairs = zip(one, other, strict=False)
    return next((number for number, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def test_servegen(tmp_path: Path) -> None:
    path = tmp_path / "workload.csv"
    path.write_bytes(SERVEGEN)
    trace = load_trace(ServeGenTrace(path=str(path)), seed=0)
    assert trace.table.to_numpy().tolist() == [[0, 0, 10, 20], [1, 0.75, 15, 25]]
    assert (trace.name, trace.notes) == ("servegen", ())
    path.write_bytes(b"request_id,timestamp,input_tokens,output_tokens,reason_ratio\n0,0.5,10,20,0.4\n")
    assert load_trace(ServeGenTrace(path=str(path)), seed=0).notes[0].startswith("reason_ratio ignored")


def bailian(folder: Path, *lines: bytes) -> Trace:
    path = folder / "qwen.jsonl"
    path.write_bytes(b"".join(lines))
    return load_trace(BailianTrace(path=str(path), on_bad_row="error"), seed=0)


def test_bailian_conversations_are_those_of_their_first_chat(tmp_path: Path) -> None:
    trace = bailian(
        tmp_path,
        bailian_line(5, -1, 0.25, (20, 3), [7, 8]),
        bailian_line(6, -1, 1.0, (33, 3), [9, 7, 8]),
        bailian_line(9, 5, 2.5, (18, 4), [7, 11]),  # shorter than the turn before: thoughts were left out
        bailian_line(12, 9, 4.0, (40, 1), [7, 11, 12]),
        bailian_line(13, 99, 5.0, (16, 1), [7]),  # its parent is not in the file
    )
    assert trace.table["session_id"].tolist() == [5, 6, 5, 5, 13]
    assert trace.table["turn"].tolist() == [0, 0, 1, 2, 0]
    assert trace.table["arrival_time"].tolist() == [0, 0.75, 2.25, 3.75, 4.75]
    assert (trace.hash_block_size, trace.name) == (16, "bailian")


def test_equal_blocks_of_bailian_are_shared_where_all_before_them_are_equal(tmp_path: Path) -> None:
    trace = bailian(
        tmp_path,
        bailian_line(1, -1, 0, (64, 1), [1, 2, 3, 4]),
        bailian_line(2, -1, 1, (64, 1), [1, 2, 9, 4]),
        bailian_line(3, -1, 2, (48, 1), [2, 3, 4]),
        bailian_line(4, -1, 3, (64, 1), [1, 2, 3, 4]),
        bailian_line(5, -1, 4, (32, 1), [2, 1]),
    )
    assert [shared(trace, 0, row) for row in (1, 2, 3)] == [2, 0, 4]
    every = np.concatenate(trace.table["hash_ids"].tolist())
    assert len(np.unique(every)) == 4 + 2 + 3 + 1, "as many as there are different beginnings"


def baseten(folder: Path, rows: list[dict[str, Any]], **keys: Any) -> Trace:
    path = folder / "trace.parquet"
    schema = pa.schema([("total_hashes", pa.list_(pa.uint64()))]) if "total_hashes" in rows[0] else None
    table = pa.Table.from_pandas(pd.DataFrame(rows).drop(columns="total_hashes", errors="ignore"))
    if schema:
        table = table.append_column("total_hashes", pa.array([each["total_hashes"] for each in rows], schema.types[0]))
    pyarrow.parquet.write_table(table, path)
    return load_trace(BasetenTrace(path=str(path), **keys), seed=0)


def row(at_ms: int, lengths: tuple[int, int], session: str | None, duration_ms: float, ids: object) -> dict[str, Any]:
    return {
        "timestamp_start_unix_ms": at_ms, "prompt": "x", "input_tokens": lengths[0], "output_tokens": lengths[1],
        "provided_session_id": session, "duration_e2e_ms": duration_ms, "total_hashes": ids, "block_size": 4,
    }  # fmt: skip


START = 1_716_200_000_000
HUGE = 2**64 - 5
ROWS = [
    row(START + 9000, (9, 2), "a", 1500.0, [1, HUGE]),  # not in order, and without the block that is not full
    row(START, (8, 2), "a", 2000.0, [1, HUGE]),
    row(START + 1000, (5, 0), None, 100.0, [1, 3]),
    row(START + 10_000, (4, 1), "a", 100.0, [4]),
]


def test_baseten_says_sessions_delays_and_contents(tmp_path: Path) -> None:
    trace = baseten(tmp_path, ROWS)
    table = trace.table
    assert table["arrival_time"].tolist() == [0, 1, 9, 10]
    assert table["num_prompt_tokens"].tolist() == [8, 5, 9, 4] and table["num_output_tokens"].tolist() == [2, 1, 2, 1]
    assert table["session_id"].nunique() == 2 and table["turn"].tolist() == [0, 0, 1, 2]
    assert table["think_time"].tolist() == [0, 0, 7, 0], "7 s after the answer, and before it in the last turn"
    assert [len(ids) for ids in table["hash_ids"]] == [2, 2, 3, 1]
    assert [shared(trace, 0, other, 4) for other in (1, 2, 3)] == [1, 2, 0]
    assert trace.notes == ("1 requests without an output token are replayed with one",)


def test_recorded_delays_are_waited(tmp_path: Path) -> None:
    trace = baseten(tmp_path, ROWS)
    recorded = SessionsArrival(rate=1e9, think_time="trace")  # type: ignore[arg-type]
    arrivals = make_arrivals(trace, recorded, np.random.default_rng(0))
    arrivals.pop_due(10**9)
    arrivals.on_finish(0, 2 * 10**9)
    assert arrivals.pop_due(10**10) == [(9 * 10**9, 2)]


def test_a_column_whose_name_is_no_text_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    pd.DataFrame({"zzzzzzzz": [1]}).to_parquet(path)
    path.write_bytes(path.read_bytes().replace(b"zzzzzzzz", b"zzzz\xbczzz"))
    with pytest.raises(TraceError, match="cannot be read as Parquet"):
        load_trace(BasetenTrace(path=str(path)), seed=0)


def test_baseten_without_hashes_has_no_sessions(tmp_path: Path) -> None:
    rows = [{key: value for key, value in each.items() if key != "total_hashes"} for each in ROWS]
    assert "session_id" not in baseten(tmp_path, rows).table
    with pytest.raises(TraceError, match="not a Baseten trace: has no column input_tokens, output_tokens"):
        baseten(tmp_path, [{"timestamp_start_unix_ms": 1}])


@pytest.mark.parametrize("odd", [{"block_size": math.inf}, {"block_size": 1e300}, {"provided_session_id": ["a"]}])
def test_baseten_odd_values_cost_rows_or_are_read(odd: dict[str, Any], tmp_path: Path) -> None:
    try:
        assert len(baseten(tmp_path, [each | odd for each in ROWS]).table) == len(ROWS)
    except TraceError as error:
        assert "hash_block_size" in str(error)


def test_baseten_needs_no_description_of_the_table_by_pandas(tmp_path: Path) -> None:
    table = pa.Table.from_pandas(pd.DataFrame(ROWS).drop(columns="total_hashes"))
    damaged = table.schema.metadata[b"pandas"].replace(b"numpy_type", b"x")
    pyarrow.parquet.write_table(table.replace_schema_metadata({b"pandas": damaged}), tmp_path / "a.parquet")
    assert len(load_trace(BasetenTrace(path=str(tmp_path / "a.parquet")), seed=0).table) == len(ROWS)


def test_baseten_rows_that_cannot_be_used_are_counted(tmp_path: Path) -> None:
    trace = baseten(
        tmp_path, [*ROWS, row(START, (9, 1), "b", 1.0, [1]), row(START, (9, 1), "b", 1.0, None)], on_bad_row="drop"
    )
    assert len(trace.table) == 4 and sum(trace.bad_rows.values()) == 2
    trace = baseten(tmp_path, [*ROWS, {**row(START + 1, (4, 1), "b", 1.0, [1]), "block_size": None}], on_bad_row="drop")
    assert trace.hash_block_size == 4
    assert trace.bad_rows == {"hash_block_size is not that of the first line": 1}


def test_baseten_texts_in_place_of_numbers_are_no_numbers(tmp_path: Path) -> None:
    for name in ("timestamp_start_unix_ms", "input_tokens", "duration_e2e_ms", "block_size"):
        rows = [{**each, name: "x"} for each in ROWS]
        with (
            pytest.raises(TraceError, match="no usable row|hash_block_size")
            if name != "duration_e2e_ms"
            else nullcontext()
        ):
            baseten(tmp_path, rows, on_bad_row="drop")


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" + b"\0" * 50 + b"PAR1", b"a,b\n1,2\n"])
def test_files_that_are_no_parquet_are_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "trace.parquet"
    path.write_bytes(data)
    with pytest.raises(TraceError, match="cannot be read as Parquet: ") as caught:
        load_trace(BasetenTrace(path=str(path)), seed=0)
    assert "\n" not in str(caught.value)
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        load_trace(BasetenTrace(path=str(tmp_path / "none")), seed=0)
