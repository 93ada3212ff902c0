"""The project's own CSV, and what all readers do about bad rows, wrong files and limits."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.config import AzureTrace, BurstGptTrace, CsvTrace, JsonlTrace, MooncakeTrace, ShareGptTrace
from harness.config.schema.traffic.trace_files import BailianTrace, ServeGenTrace
from harness.errors import ConfigError, TraceError
from harness.workload.readers import load_trace
from harness.workload.rows import csv_file
from harness.workload.trace import Trace

HEADER = "arrival_time,num_prompt_tokens,num_output_tokens\n"
SESSIONS = "session_id,turn,num_prompt_tokens,num_output_tokens\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.csv"


def read(path: Path, text: str | bytes, **keys: object) -> Trace:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_trace(CsvTrace(path=str(path), **({"on_bad_row": "drop"} | keys)), seed=0)  # type: ignore[arg-type]


def read_untimed(path: Path, text: str, **keys: object) -> Trace:
    path.write_text(text)
    settings = CsvTrace(path=str(path), **({"on_bad_row": "drop"} | keys))  # type: ignore[arg-type]
    return load_trace(settings, seed=0, with_times=False)


def prompts(trace: Trace) -> list[int]:
    return trace.table["num_prompt_tokens"].tolist()


def test_csv_with_every_column(path: Path) -> None:
    text = "request_id,priority,turn,session_id,num_output_tokens,num_prompt_tokens,arrival_time\n"
    trace = read(path, text + 'a,-1,0,7,2,10,5.5\nb,3,0,8,1,"20",6.0\nc,0,4,7,3,13,7.25\n')
    assert trace.table["request_id"].tolist() == [0, 1, 2]
    assert trace.table["arrival_time"].tolist() == [0.0, 0.5, 1.75]
    assert trace.table["session_id"].tolist() == [7, 8, 7]
    assert trace.table["turn"].tolist() == [0, 0, 4]
    assert trace.table["priority"].tolist() == [-1, 3, 0]
    assert prompts(trace) == [10, 20, 13]
    assert trace.name == "trace"
    assert "numbered from 0" in trace.notes[0]


def test_csv_with_classes_of_requests(path: Path) -> None:
    trace = read(
        path, "num_prompt_tokens,num_output_tokens,tenant,deadline\n5,1,-7,0.5\n6,2,3,1e3\n7,1,2,-1\n8,1,x,1\n"
    )
    assert trace.table["tenant"].tolist() == [-7, 3] and trace.table["deadline"].tolist() == [0.5, 1000.0]
    assert trace.bad_rows == {"deadline is negative": 1, "tenant is not a finite number": 1}


def test_csv_with_the_least_columns(path: Path) -> None:
    trace = read(path, "num_prompt_tokens,num_output_tokens\n5,1\n6.0,2\n")
    assert prompts(trace) == [5, 6]
    assert not trace.has_times
    assert "session_id" not in trace.table


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("3,x,1", "num_prompt_tokens is not a finite number"),
        ("3,NA,1", "num_prompt_tokens is not a finite number"),
        ("3,nan,1", "num_prompt_tokens is not a finite number"),
        ("3,1e999,1", "num_prompt_tokens is not a finite number"),
        ("3,1_0,1", "num_prompt_tokens is not a finite number"),
        ("3,\xff,1", "num_prompt_tokens is not a finite number"),
        ("3,,1", "num_prompt_tokens is missing"),
        (" , 4 ,1", "arrival_time is missing"),
        ("inf,4,1", "arrival_time is not a finite number"),
        ("1e16,4,1", "arrival_time is too large"),
        ("3,4.5,1", "num_prompt_tokens is not a whole number"),
        ("3,-4,1", "num_prompt_tokens is negative"),
        ("3,4,0", "num_output_tokens is 0"),
        ("3,2147483648,1", "num_prompt_tokens is larger than 2147483647"),
        ("3,1e300,1", "num_prompt_tokens is too large"),
        ("3,4", "the line does not have 3 columns"),
        ("3,4,1,9", "the line does not have 3 columns"),
        ("3,4\r4,4,1", "the line does not have 3 columns"),
        ("3,4\r4,1", "num_prompt_tokens is not a finite number"),
    ],
)
def test_csv_bad_rows(path: Path, row: str, reason: str) -> None:
    text = (HEADER + f"2,1,1\n\n{row}\n2,2,2\n3,3,3").encode("latin-1")
    trace = read(path, text)
    assert prompts(trace) == [1, 2, 3]
    assert trace.bad_rows == {reason: 1}
    with pytest.raises(TraceError) as error:
        read(path, text, on_bad_row="error")
    assert str(error.value).startswith(f"{path}, line 4: {reason}")


def test_requests_say_how_many_samples_they_want(path: Path) -> None:
    text = "num_prompt_tokens,num_output_tokens,n\n5,1,4\n6,2,1\n7,2,0\n8,1,1e9\n"
    trace = read(path, text)
    assert trace.num_sequences.tolist() == [4, 1]
    assert trace.bad_rows == {"n is 0": 1, "n is larger than 1048576": 1}
    with pytest.raises(ConfigError, match=r"trace.n=2: \S+ has a column n, which says it for each request"):
        read(path, text, n=2)
    without = "num_prompt_tokens,num_output_tokens\n5,1\n6,2\n"
    assert read(path, without, n=2).num_sequences.tolist() == [2, 2]
    assert read(path, without).num_sequences.tolist() == [1, 1]


def test_an_unpaired_quote_spoils_no_other_row(path: Path) -> None:
    trace = read(path, HEADER + '1,1,1\n2,"x,1\n3,3,1\n4,"4",1\n')
    assert prompts(trace) == [1, 3, 4]
    assert trace.bad_rows == {"num_prompt_tokens is not a finite number": 1}


def test_bad_rows_are_reported(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    read(path, HEADER + "1,1,1\n2,0,1\n3,0,1\n")
    assert caplog.messages == [f"{path}: left out 2 x num_prompt_tokens is 0"]


def test_the_first_bad_row_of_the_file_is_named(path: Path) -> None:
    with pytest.raises(TraceError, match=r"line 3: the line does not have 3 columns"):
        read(path, HEADER + "1,1,1\n2\n3,0,1\n", on_bad_row="error")
    with pytest.raises(TraceError, match=r"line 2: num_output_tokens is 0"):
        read(path, HEADER + "1,1,0\n2\n3,0,1\n", on_bad_row="error")


def test_line_numbers_go_on_from_chunk_to_chunk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_file, "_BLOCK_BYTES", 7)
    with pytest.raises(TraceError, match=r"line 6: num_prompt_tokens is 0"):
        read(path, HEADER + "1,1,1\n2,1,1\n\n3,1,1\n4,0,1\n", on_bad_row="error")


@pytest.mark.parametrize(("limit", "kept", "bad"), [(1, [1], 0), (2, [1, 4], 2), (3, [1, 4, 6], 4), (9, [1, 4, 6], 5)])
def test_without_times_a_limit_counts_usable_rows_and_looks_no_further(
    path: Path, limit: int, kept: list[int], bad: int
) -> None:
    text = HEADER + "1,1,1\n2\n3,0,1\n4,4,1\n5,0,1\n5\n6,6,1\n7,0,1\n"
    trace = read_untimed(path, text, limit=limit)
    assert prompts(trace) == kept
    assert sum(trace.bad_rows.values()) == bad


def test_without_times_a_limit_leaves_later_bad_rows_alone(path: Path) -> None:
    assert prompts(read_untimed(path, HEADER + "1,1,1\n2,x,1\n", limit=1, on_bad_row="error")) == [1]


rows = st.sampled_from(["1,1,1", "2,5,3", "3,7,1", "1", "x,1,1", "2,0,4", "", '"2",6,2', "9,9,9,9"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(rows, max_size=12), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.integers(1, 40))
def test_the_size_of_a_chunk_makes_no_difference(
    path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], newline: str, ends: bool, block_bytes: int
) -> None:
    text = newline.join([HEADER.strip(), "1,1,1", *lines]) + (newline if ends else "")
    whole = read(path, text)
    with monkeypatch.context() as patch:
        patch.setattr(csv_file, "_BLOCK_BYTES", block_bytes)
        cut = read(path, text)
    assert cut.table.equals(whole.table)
    assert cut.bad_rows == whole.bad_rows


def test_csv_may_begin_with_a_byte_order_mark(path: Path) -> None:
    assert prompts(read(path, b"\xef\xbb\xbf" + (HEADER + "1,1,1\n").encode())) == [1]


def test_turns_of_a_session_are_checked(path: Path) -> None:
    trace = read(path, SESSIONS + "1,0,10,5\n2,0,7,1\n1,1,14,5\n1,2,15,5\n1,2,30,5\n2,0,9,1\n1,3,20,1\n")
    assert trace.table[["session_id", "turn"]].to_numpy().tolist() == [[1, 0], [2, 0], [1, 2], [1, 3]]
    assert trace.bad_rows == {
        "the prompt is shorter than the session's previous prompt and output together": 1,
        "turn is not after the session's previous turn": 2,
    }


def test_sessions_without_turns_count_them(path: Path) -> None:
    header = "arrival_time,session_id,num_prompt_tokens,num_output_tokens\n"
    trace = read(path, header + "0,4,5,1\n2,4,8,1\n1,4,6,1\n3,4,8,1\n")
    assert prompts(trace) == [5, 6, 8]  # in order of time, in which the last prompt is too short
    assert trace.table["turn"].tolist() == [0, 1, 2]
    assert trace.bad_rows == {"the prompt is shorter than the session's previous prompt and output together": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("\n \n", "the file is empty"),
        ("1,2,3\n", "not a trace: its first line must name num_prompt_tokens, num_output_tokens; it reads '1,2,3'"),
        (HEADER, "no usable row (it holds none)"),
        (HEADER + "1,0,1\n2\n", "no usable row (1 x num_prompt_tokens is 0, 1 x the line does not have 3 columns)"),
        (
            "num_prompt_tokens,num_output_tokens,model\n1,1,x\n",
            "unknown column 'model' (allowed: request_id, arrival_time",
        ),
        (
            "num_prompt_tokens,num_output_tokens,num_prompt_tokens\n1,1,1\n",
            "two columns are named 'num_prompt_tokens'",
        ),
        ("num_prompt_tokens,num_output_tokens,priority,priority\n1,1,1,1\n", "two columns are named 'priority'"),
        ("num_prompt_tokens,num_output_tokens,turn\n1,1,1\n", "turn without session_id"),
    ],
)
def test_csv_wrong_files(path: Path, text: str, message: str) -> None:
    with pytest.raises(TraceError) as error:
        read(path, text)
    assert str(error.value).startswith(f"{path}: {message}")
    assert "\n" not in str(error.value)


FILE_TRACES = [
    AzureTrace, BailianTrace, BurstGptTrace, CsvTrace, JsonlTrace, MooncakeTrace, ServeGenTrace, ShareGptTrace,
]  # fmt: skip
PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(range(256)) * 40


@pytest.mark.parametrize("kind", FILE_TRACES)
@pytest.mark.parametrize("content", [b"", PNG, b"a,b,c\n1,2,3\n", b"{}\n", b"[1]", b"[", b"\x00" * 99], ids=repr)
def test_every_reader_refuses_other_files_in_one_line(path: Path, kind: type, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(TraceError) as error:
        load_trace(kind(path=str(path)), seed=0)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)
    assert str(error.value).isprintable()


@pytest.mark.parametrize("kind", FILE_TRACES)
def test_every_reader_names_a_file_it_cannot_open(tmp_path: Path, kind: type) -> None:
    with pytest.raises(TraceError, match="nowhere: cannot be read: No such file"):
        load_trace(kind(path=str(tmp_path / "nowhere")), seed=0)
    with pytest.raises(TraceError, match=f"{tmp_path}: cannot be read: Is a directory"):
        load_trace(kind(path=str(tmp_path)), seed=0)


values = st.sampled_from(
    ["1", "2", "-1", "0", "1.5", "", "x", "\xff", '"', ",", "\r", "\n", "\x00", " ", "1e9", "[1]", "{", "}"]
)
CSV_START = HEADER + "0,1,1\n"
JSON_START = '{"num_prompt_tokens": 2, "num_output_tokens": 1, "token_ids": [1, 2]}\n'


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(values, st.just(",1,1\n"), st.just(JSON_START)), max_size=30))
def test_whatever_follows_the_first_row_is_a_row_or_a_bad_row(path: Path, pieces: list[str]) -> None:
    csv, jsonl = CsvTrace(path=str(path), on_bad_row="drop"), JsonlTrace(path=str(path), on_bad_row="drop")
    for config, start in ((csv, CSV_START), (jsonl, JSON_START)):
        path.write_bytes((start + "".join(pieces)).encode("latin-1"))
        trace = load_trace(config, seed=0)
        num_lines = sum(not line.isspace() for line in path.read_bytes().rstrip(b"\n").split(b"\n") if line)
        assert len(trace.table) + sum(trace.bad_rows.values()) == num_lines - (start == CSV_START)
        assert (trace.table[["num_prompt_tokens", "num_output_tokens"]] >= 1).all(axis=None)
