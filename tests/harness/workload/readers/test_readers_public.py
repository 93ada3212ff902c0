"""Readers of the public formats: what is particular to each."""

from pathlib import Path

import numpy as np
import pytest

from harness.config import AzureTrace, BurstGptTrace, MooncakeTrace
from harness.errors import TraceError
from harness.workload.readers import load_trace
from harness.workload.trace import Trace
from tests.harness.builders import TRACES
from tests.harness.workload.readers.builders import (
    AZURE_2023,
    AZURE_2024,
    AZURE_2025,
    BURSTGPT_1,
    BURSTGPT_3,
    mooncake_line,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace"


def lengths(trace: Trace) -> list[list[int]]:
    return trace.table[["num_prompt_tokens", "num_output_tokens"]].to_numpy().tolist()


def test_azure_2023_keeps_its_100_ns(path: Path) -> None:
    path.write_bytes(AZURE_2023)
    trace = load_trace(AzureTrace(path=str(path)), seed=0)
    assert trace.table["arrival_time"].tolist() == [0.0, 1e-7, 4.314579]
    assert lengths(trace) == [[374, 44], [396, 109], [879, 55]]
    assert trace.table["request_id"].tolist() == [0, 1, 2]
    assert (trace.name, trace.source, trace.bad_rows, trace.notes) == ("azure", str(path), {}, ())


def test_azure_2024_may_lack_the_fraction(path: Path) -> None:
    path.write_bytes(AZURE_2024)
    trace = load_trace(AzureTrace(path=str(path)), seed=0)
    assert trace.table["arrival_time"].tolist() == [0.0, 0.99007]


def test_azure_2025_notes_that_images_are_left_out(path: Path) -> None:
    path.write_bytes(AZURE_2025)
    trace = load_trace(AzureTrace(path=str(path)), seed=0)
    assert trace.table["arrival_time"].tolist() == [0.0, 5.55]
    assert lengths(trace) == [[770, 491], [949, 126]]
    assert "NumImages ignored" in trace.notes[0]


@pytest.mark.parametrize(
    "time", ["374", "2023-11-16", "2023-13-16 18:15:46", "1023-11-16 18:15:46", "18:15:46", "soon", "2023-11-16 18:15"]
)
def test_azure_times_must_be_dates_with_times(path: Path, time: str) -> None:
    path.write_bytes(AZURE_2023 + f"\n{time},9,9".encode())
    trace = load_trace(AzureTrace(path=str(path), on_bad_row="drop"), seed=0)
    assert trace.bad_rows == {"TIMESTAMP is not a date with a time": 1}


@pytest.mark.parametrize(
    "name", ["azure2024_code_FORMAT_SAMPLE_10rows.csv", "azure2025_multimodal_FORMAT_SAMPLE_10rows.csv"]
)
def test_azure_samples_of_the_real_files(name: str) -> None:
    sample = TRACES / "azure_formats" / name
    if not sample.exists():
        pytest.skip(f"{sample} is not here")
    assert len(load_trace(AzureTrace(path=str(sample), on_bad_row="error"), seed=0).table) == 10


def test_burstgpt_counts_failed_requests(path: Path) -> None:
    path.write_bytes(BURSTGPT_1)
    trace = load_trace(BurstGptTrace(path=str(path)), seed=0)
    assert trace.table["arrival_time"].tolist() == [0.0, 113.0, 113.0]
    assert lengths(trace) == [[472, 18], [417, 276], [17, 3]]
    assert trace.bad_rows == {"failed request (0 tokens)": 2}


def test_burstgpt_3_is_read_by_name_and_claims_no_sessions(path: Path) -> None:
    path.write_bytes(BURSTGPT_3)
    trace = load_trace(BurstGptTrace(path=str(path)), seed=0)
    assert trace.table["arrival_time"].tolist() == [0.0, 51.5]
    assert lengths(trace) == [[906, 446], [36, 29]]
    assert "session_id" not in trace.table
    assert "Session ID ignored" in trace.notes[0]


def test_burstgpt_real_rows() -> None:
    sample = TRACES / "burstgpt" / "BurstGPT_1_first400rows.csv"
    if not sample.exists():
        pytest.skip(f"{sample} is not here")
    trace = load_trace(BurstGptTrace(path=str(sample)), seed=0)
    assert (len(trace.table), trace.bad_rows) == (383, {"failed request (0 tokens)": 17})


def test_mooncake_times_are_milliseconds_and_ids_arrays(path: Path) -> None:
    path.write_bytes(mooncake_line(27000, 512, 5, [3]) + mooncake_line(30001, 513, 1, [3, 4]))
    trace = load_trace(MooncakeTrace(path=str(path)), seed=0)
    assert trace.table["arrival_time"].tolist() == [0.0, 3.001]
    assert lengths(trace) == [[512, 5], [513, 1]]
    assert [ids.tolist() for ids in trace.table["hash_ids"]] == [[3], [3, 4]]
    assert all(ids.dtype == np.int64 for ids in trace.table["hash_ids"])
    assert trace.hash_block_size == 512


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (mooncake_line(0, 512, 5, [1, 2]), "wrong number of hash ids for input_length (blocks of 512)"),
        (mooncake_line(0, 513, 5, [1]), "wrong number of hash ids for input_length (blocks of 512)"),
        (mooncake_line(0, 9, 5, [1.5]), "hash_ids is not a list of whole numbers"),
        (mooncake_line(0, 9, 5, [2**63]), "hash_ids is not a list of whole numbers"),
        (mooncake_line(0, 9, 5, 7), "hash_ids is not a list of whole numbers"),
        (mooncake_line(0, 9, 5, None), "hash_ids is missing"),
        (mooncake_line(0, "9", 5, [1]), "input_length is not a finite number"),
        (mooncake_line(0, 9, True, [1]), "output_length is not a finite number"),
        (mooncake_line(None, 9, 5, [1]), "timestamp is missing"),
        (mooncake_line(-2e15, 9, 5, [1]), "timestamp is too large"),
        (mooncake_line(0, 10**400, 5, [1]), "input_length is not a finite number"),
        (b'{"timestamp": 0, "input_len\n', "the line is not a JSON object"),
        (b"[1, 2]\n", "the line is not a JSON object"),
        (b"\xff\xfe\n", "the line is not a JSON object"),
    ],
)
def test_mooncake_bad_rows(path: Path, line: bytes, reason: str) -> None:
    good = mooncake_line(0, 9, 5, [1])
    path.write_bytes(good + b"\n" + line + good)
    trace = load_trace(MooncakeTrace(path=str(path), on_bad_row="drop"), seed=0)
    assert lengths(trace) == [[9, 5], [9, 5]]
    assert trace.bad_rows == {reason: 1}
    with pytest.raises(TraceError) as error:
        load_trace(MooncakeTrace(path=str(path), on_bad_row="error"), seed=0)
    assert str(error.value).startswith(f"{path}, line 3: {reason}")


def test_mooncake_batches_are_one_file(path: Path) -> None:
    """More lines than are decoded at once; sorting and line numbers go on across the cut."""
    n = 9000
    path.write_bytes(
        b"".join(mooncake_line(i, 9, 5, [i]) for i in range(n))
        + mooncake_line(3, 9, 5, [n])
        + mooncake_line(10**14, 9, 5, [1])
    )
    trace = load_trace(MooncakeTrace(path=str(path)), seed=0)
    assert [ids[0] for ids in trace.table["hash_ids"]] == [0, 1, 2, 3, n, *range(4, n)]
    assert trace.notes == ("1 of 9001 rows were out of order in the file; all are sorted by time",)
    assert trace.bad_rows == {"the time is far outside all others": 1}
    with pytest.raises(TraceError, match="line 9002: the time is far outside all others"):
        load_trace(MooncakeTrace(path=str(path), on_bad_row="error"), seed=0)
