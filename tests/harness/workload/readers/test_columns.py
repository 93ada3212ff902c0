"""Files with column names and time units of the user's own."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from harness.config import CsvTrace, JsonlTrace
from harness.config.schema.workload import TRACE_COLUMNS
from harness.errors import ConfigError, TraceError
from harness.workload.readers import load_trace
from tests.harness.builders import config

COLUMNS = {"when": "arrival_time", "prompt": "num_prompt_tokens", "answer": "num_output_tokens"}
ROWS = [(1716200000.125, 8, 3, "a"), (1716200001.5, 4, 2, "b"), (1716200001.25, 16, 1, "a")]


def times_in(unit: str) -> list[object]:
    if unit == "date":
        return [pd.Timestamp(row[0], unit="s", tz="UTC").isoformat() for row in ROWS]
    factor = {"s": 1, "ms": 10**3, "us": 10**6}[unit]
    return [row[0] if unit == "s" else round(row[0] * factor) for row in ROWS]


def csv_file(folder: Path, unit: str) -> CsvTrace:
    lines = [f"{when},{row[1]},{row[2]},{row[3]}" for when, row in zip(times_in(unit), ROWS, strict=True)]
    path = folder / "log.csv"
    path.write_text("\n".join(["when,prompt,answer,user", *lines]) + "\n")
    return CsvTrace(path=str(path), columns=COLUMNS, time_unit=unit)  # type: ignore[arg-type]


def jsonl_file(folder: Path, unit: str) -> JsonlTrace:
    rows = [
        dict(zip(("when", "prompt", "answer", "user"), (when, *row[1:]), strict=True))
        for when, row in zip(times_in(unit), ROWS, strict=True)
    ]
    path = folder / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return JsonlTrace(path=str(path), columns=COLUMNS, time_unit=unit)  # type: ignore[arg-type]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "date"])
@pytest.mark.parametrize("write", [csv_file, jsonl_file])
def test_names_and_units_make_no_difference(tmp_path: Path, write: object, unit: str) -> None:
    table = load_trace(write(tmp_path, unit), seed=0).table  # type: ignore[operator]
    assert table["arrival_time"].tolist() == [0, 1.125, 1.375]  # sorted, and exact
    assert table["num_prompt_tokens"].tolist() == [8, 16, 4]
    assert table["num_output_tokens"].tolist() == [3, 1, 2]
    assert set(table) == {"request_id", "arrival_time", "num_prompt_tokens", "num_output_tokens"}


def test_lists_have_names_too(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    row = {"p": 5, "o": 1, "ids": [1, 2], "size": 4, "tokens": [1, 2, 3, 4, 5]}
    path.write_text(json.dumps(row | {"x": None}) + "\n" + json.dumps(row) + "\n")
    columns = dict(zip(("p", "o", "ids", "size", "tokens"), (*TRACE_COLUMNS[2:4], *TRACE_COLUMNS[-3:]), strict=True))
    trace = load_trace(JsonlTrace(path=str(path), columns=columns), seed=0)
    assert trace.hash_block_size == 4 and len(trace.table) == 2
    assert trace.table["hash_ids"][0].tolist() == [1, 2] and trace.table["token_ids"][0].tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("header", "columns", "message"),
    [
        ("t,prompt,answer", COLUMNS, "trace.columns names 'when', which it lacks; it has t, prompt, answer"),
        ("when,prompt", COLUMNS, "not a trace: its first line must name prompt, answer; it reads 'when,prompt'"),
        (
            "when,arrival_time,prompt,answer",
            COLUMNS,
            "columns 'when' and 'arrival_time' both give arrival_time",
        ),
        (
            "when,prompt,answer",
            COLUMNS | {"prompt": "num_prompt_tokens", "answer": "num_output_tokens", "when": "turn"},
            "turn without session_id",
        ),
        ("num_prompt_tokens,num_output_tokens,prioritys", {}, "unknown column 'prioritys'; did you mean 'priority'?"),
        ("when,when,prompt,answer", COLUMNS, "two columns are named 'when'"),
    ],
)
def test_missing_and_doubled_columns(tmp_path: Path, header: str, columns: dict[str, str], message: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"{header}\n1,2,3,4\n")
    with pytest.raises(TraceError) as caught:
        load_trace(CsvTrace(path=str(path), columns=columns), seed=0)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_other_names_are_named_in_the_message(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("when,num_prompt_tokens,num_output_tokens\n1,2,3\n")
    with pytest.raises(TraceError, match="trace.columns={<column>: <one of these>}"):
        load_trace(CsvTrace(path=str(path)), seed=0)


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_an_odd_time_is_a_bad_row(tmp_path: Path, unit: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text("when,prompt,answer\n2024-05-20T10:13:20Z,2,3\n")
    settings = CsvTrace(path=str(path), columns=COLUMNS, time_unit=unit)  # type: ignore[arg-type]
    with pytest.raises(TraceError, match="when is not a finite number"):
        load_trace(settings, seed=0)
    assert len(load_trace(settings, seed=0, with_times=False).table) == 1


def test_as_on_the_command_line() -> None:
    given = ("trace=csv", "trace.path=x", "trace.columns={a: num_prompt_tokens, b: num_output_tokens}")
    assert config(*given).trace.columns == {"a": "num_prompt_tokens", "b": "num_output_tokens"}  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"^trace.columns.a='promptt': choose one of request_id.*"):
        config("trace=csv", "trace.path=x", "trace.columns={a: promptt}")
