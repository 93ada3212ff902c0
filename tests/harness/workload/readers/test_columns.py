"""Files with column names and time units of the user's own."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from harness.config import AzureTrace, CsvTrace, JsonlTrace
from harness.config.schema.traffic.trace_files import TRACE_COLUMNS
from harness.errors import ConfigError, TraceError
from harness.workload.readers import load_trace
from tests.harness.builders import config

COLUMNS = {"when": "arrival_time", "prompt": "num_prompt_tokens", "answer": "num_output_tokens"}
ROWS = [(1716200000.125, 8, 3, "a"), (1716200001.5, 4, 2, "b"), (1716200001.25, 16, 1, "a")]


def times_in(unit: str) -> list[object]:
    if unit == "date":
        return [pd.Timestamp(row[0], unit="s", tz="UTC").isoformat() for row in ROWS]
    factor = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    return [row[0] if unit == "s" else round(row[0] * 1000) * factor // 1000 for row in ROWS]


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


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns", "date"])
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


NAMES_OF_A_LOG = "{Timestamp: arrival_time, input-tokens: num_prompt_tokens, completion_tokens: num_output_tokens}"


@pytest.mark.parametrize(("suffix", "settings"), [("csv", CsvTrace), ("jsonl", JsonlTrace)])
def test_what_a_message_proposes_reads_the_file(tmp_path: Path, suffix: str, settings: type) -> None:
    row = {"Timestamp": "2024-05-20T10:13:20Z", "input-tokens": 2, "completion_tokens": 3, "user": "x"}
    text = f"{','.join(row)}\n{','.join(map(str, row.values()))}\n" if suffix == "csv" else json.dumps(row)
    path = tmp_path / f"log.{suffix}"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        load_trace(settings(path=str(path)), seed=0)
    assert f"if these are they, set 'trace.columns={NAMES_OF_A_LOG}'" in str(caught.value)
    columns = dict(pair.split(": ") for pair in NAMES_OF_A_LOG.strip("{}").split(", "))
    with pytest.raises(TraceError, match="Timestamp is a date, which trace.time_unit=date reads"):
        load_trace(settings(path=str(path), columns=columns), seed=0)
    assert len(load_trace(settings(path=str(path), columns=columns, time_unit="date"), seed=0).table) == 1


@pytest.mark.parametrize("header", ["tokens,x,y", "prompt_tokens,x,y"])
def test_no_proposal_where_names_tell_too_little(tmp_path: Path, header: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"{header}\n1,2,3\n")
    with pytest.raises(TraceError) as caught:
        load_trace(CsvTrace(path=str(path)), seed=0)
    assert "trace.columns" not in str(caught.value)


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_an_odd_time_is_a_bad_row(tmp_path: Path, unit: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text("when,prompt,answer\n2024-05-20T10:13:20Z,2,3\n")
    settings = CsvTrace(path=str(path), columns=COLUMNS, time_unit=unit)  # type: ignore[arg-type]
    with pytest.raises(TraceError, match="when is a date, which trace.time_unit=date reads"):
        load_trace(settings, seed=0)
    assert len(load_trace(settings, seed=0, with_times=False).table) == 1


def test_as_on_the_command_line() -> None:
    given = ("trace=csv", "trace.path=x", "trace.columns={a: num_prompt_tokens, b: num_output_tokens}")
    assert config(*given).trace.columns == {"a": "num_prompt_tokens", "b": "num_output_tokens"}  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"^trace.columns.a='promptt': choose one of request_id.*"):
        config("trace=csv", "trace.path=x", "trace.columns={a: promptt}")


@pytest.mark.parametrize("kind", [CsvTrace, JsonlTrace])
def test_nanoseconds_since_1970_keep_their_last_digit(tmp_path: Path, kind: type) -> None:
    path, start = tmp_path / "a", 1_716_200_000_120_123_457
    rows = [{"arrival_time": start + step, "num_prompt_tokens": 1, "num_output_tokens": 1} for step in (0, 1, 3)]
    frame = pd.DataFrame(rows)
    path.write_text(frame.to_csv(index=False) if kind is CsvTrace else frame.to_json(orient="records", lines=True))
    assert load_trace(kind(path=str(path), time_unit="ns"), seed=0).table["arrival_time"].tolist() == [0, 1e-9, 3e-9]


def test_a_table_of_numbers_that_no_float_holds_costs_rows() -> None:
    odd = [10**400, 1 + 2j, True, [1], None, 5]
    table = pd.DataFrame({"num_prompt_tokens": 7, "num_output_tokens": pd.Series(odd, dtype=object)})
    trace = load_trace(JsonlTrace(path="DataFrame", on_bad_row="drop"), seed=0, table=table, with_times=False)
    assert trace.table["num_output_tokens"].tolist() == [5]


def test_only_whole_nanoseconds_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    times = ["5", "", "6.5", "1e9", "x", "9" * 19, "1" * 20]
    path.write_text("arrival_time,num_prompt_tokens,num_output_tokens\n" + "".join(f"{time},1,1\n" for time in times))
    trace = load_trace(CsvTrace(path=str(path), time_unit="ns", on_bad_row="drop"), seed=0)
    assert len(trace.table) == 1
    assert trace.bad_rows == {
        "arrival_time is missing": 1, "arrival_time is not a whole number of nanoseconds": 5,
    }  # fmt: skip


@pytest.mark.parametrize(("name", "sign"), [("semicolon", ";"), ("tab", "\t"), ("pipe", "|")])
def test_columns_may_be_divided_by_other_signs(tmp_path: Path, name: str, sign: str) -> None:
    path = tmp_path / "a.csv"
    rows = [("num_prompt_tokens", "num_output_tokens", "priority"), ("7", "2", "1"), ("9", "3", "0")]
    path.write_text("\n".join(map(sign.join, rows)))
    with pytest.raises(TraceError, match=f"its columns are not divided by comma: set trace.delimiter={name}$"):
        load_trace(CsvTrace(path=str(path)), seed=0)
    trace = load_trace(CsvTrace(path=str(path), delimiter=name), seed=0)  # type: ignore[arg-type]
    assert trace.table[["num_prompt_tokens", "num_output_tokens", "priority"]].to_numpy().tolist() == [
        [7, 2, 1],
        [9, 3, 0],
    ]
    with pytest.raises(TraceError, match="must name num_prompt_tokens, num_output_tokens"):
        path.write_text("a;b\n1;2\n")
        load_trace(CsvTrace(path=str(path), delimiter=name), seed=0)  # type: ignore[arg-type]


def test_row_numbers_of_pandas_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    frame = pd.DataFrame({"num_prompt_tokens": [7], "num_output_tokens": [2]})
    for table in (frame, frame.reset_index(), frame.reset_index().rename(columns={"index": "Unnamed: 0"})):
        table.to_csv(path)
        assert len(load_trace(CsvTrace(path=str(path)), seed=0).table) == 1
    path.write_text(",num_prompt_tokens,num_output_tokens,\n0,7,2,\n")
    assert len(load_trace(CsvTrace(path=str(path)), seed=0).table) == 1
    frame.rename_axis("row").to_csv(path)
    with pytest.raises(TraceError, match="unknown column 'row'"):
        load_trace(CsvTrace(path=str(path)), seed=0)


WINDOWED = "arrival_time,num_prompt_tokens,num_output_tokens\n" + "".join(
    f"{time},{time},1\n" for time in (130, 110, 100, 120, 140)
)


@pytest.mark.parametrize(
    ("window", "limit", "with_times", "expected"),
    [
        ((10, 30), None, True, [110, 120]),
        ((10.5, 31), None, True, [120, 130]),
        ((0, 1e9), 2, True, [100, 110]),
        ((20, 99), 2, False, [120, 130]),
    ],
)
def test_a_window_is_in_seconds_after_the_first_request(
    tmp_path: Path, window: tuple[float, float], limit: int | None, with_times: bool, expected: list[int]
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(WINDOWED)
    trace = load_trace(CsvTrace(path=str(path), window=window, limit=limit), seed=0, with_times=with_times)
    assert trace.table["num_prompt_tokens"].tolist() == expected
    assert trace.table["arrival_time"].tolist() == [time - expected[0] for time in expected]
    assert trace.notes[-1].startswith("of 5 requests, the ") and trace.notes[-1].endswith(" s (trace.window)")
    table = pd.read_csv(path)
    assert load_trace(JsonlTrace(path="t", window=window, limit=limit), seed=0, table=table).table.equals(trace.table)


def test_a_window_without_requests_or_times_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(WINDOWED)
    with pytest.raises(TraceError, match=r"no request in trace.window=\[40.5, 60.0\]; the last is at 40 s"):
        load_trace(CsvTrace(path=str(path), window=(40.5, 60.0)), seed=0)
    path.write_text("num_prompt_tokens,num_output_tokens\n1,1\n")
    with pytest.raises(TraceError, match=r"trace.window=\[0.0, 60.0\] needs arrival times"):
        load_trace(CsvTrace(path=str(path), window=(0.0, 60.0)), seed=0)
    with pytest.raises(ConfigError, match=r"trace.window=\[5.0, 5.0\]: must be \[from, to\] with from < to"):
        config("trace=csv", "trace.path=x", "trace.window=[5,5]")
    trace = config("trace=azure", "trace.path=x", "trace.window=[5,6.5]").trace
    assert isinstance(trace, AzureTrace) and trace.window == (5, 6.5)


def test_think_times_are_read_and_may_be_empty(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("num_prompt_tokens,num_output_tokens,session_id,think_time\n5,2,1,\n9,2,1,2.5\n12,1,1,-1\n")
    trace = load_trace(CsvTrace(path=str(path), on_bad_row="drop"), seed=0)
    assert trace.table["think_time"].tolist() == [0, 2.5] and trace.bad_rows == {"think_time is negative": 1}
