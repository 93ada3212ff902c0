"""Rows out of order are sorted, damaged times cost their own rows only, and no file loses many rows unnoticed."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config import AzureTrace, BurstGptTrace, CsvTrace, MooncakeTrace
from harness.errors import TraceError
from harness.workload.readers import load_trace
from harness.workload.rows.order import FAR_OUTSIDE, far_outside
from harness.workload.trace import Trace
from tests.harness.builders import TRACES, config, execute_in

HOUR, DAY = 3600.0, 86_400.0
HEADER = "arrival_time,num_prompt_tokens,num_output_tokens\n"


def write(path: Path, times: Sequence[object]) -> Path:
    path.write_text(HEADER + "".join(f"{time},{row + 1},1\n" for row, time in enumerate(times)))
    return path


def read(path: Path, times: Sequence[object], **keys: object) -> Trace:
    return load_trace(CsvTrace(path=str(write(path, times)), **keys), seed=0)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.csv"


@pytest.mark.parametrize("damaged", [4e9, 1e14, -1e12, 0.0, 1.7e12, 1.7e9 + 30 * DAY])
def test_one_damaged_time_costs_one_row(path: Path, damaged: float) -> None:
    times = (1.7e9 + np.arange(5000) * 0.7).tolist()
    times[1200] = damaged
    trace = read(path, times)
    assert trace.bad_rows == {FAR_OUTSIDE: 1}
    assert len(trace.table) == 4999 and trace.table["arrival_time"].max() == pytest.approx(4999 * 0.7)
    with pytest.raises(TraceError, match=f"line 1202: {FAR_OUTSIDE}"):
        read(path, times, on_bad_row="error")


def test_one_damaged_date_costs_one_row(path: Path) -> None:
    start = datetime(2023, 11, 16, 18, tzinfo=UTC)
    dates = [f"{start + timedelta(seconds=i):%Y-%m-%d %H:%M:%S.%f}" for i in range(500)]
    dates[3] = "2099-12-31 23:59:59"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"{date},9,9\n" for date in dates))
    trace = load_trace(AzureTrace(path=str(path)), seed=0)
    assert (len(trace.table), trace.bad_rows) == (499, {FAR_OUTSIDE: 1})


def test_times_that_jump_back_once_are_sorted(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    times = [*range(540, 1000), *range(540)]
    trace = read(path, times)
    assert trace.table["arrival_time"].tolist() == list(range(1000))
    assert trace.table["num_prompt_tokens"].tolist() == [*range(461, 1001), *range(1, 461)]
    assert trace.table["request_id"].tolist() == list(range(1000))
    assert trace.bad_rows == {}
    assert trace.notes == ("540 of 1000 rows were out of order in the file; all are sorted by time",)
    assert caplog.messages == [f"{path}: {trace.notes[0]}"]


def test_rows_with_equal_times_keep_the_order_of_the_file(path: Path) -> None:
    assert read(path, [2, 1, 2, 1, 1]).table["num_prompt_tokens"].tolist() == [2, 4, 5, 1, 3]


def test_a_limit_takes_the_earliest_rows(path: Path) -> None:
    trace = read(path, [1000, 0, 5, 6], limit=2)
    assert trace.table["num_prompt_tokens"].tolist() == [2, 3] and trace.table["arrival_time"].tolist() == [0, 5]
    as_in_file = load_trace(CsvTrace(path=str(path), limit=2), seed=0, with_times=False)
    assert as_in_file.table["num_prompt_tokens"].tolist() == [1, 2], "without times it is the order of the file"


def test_more_bad_rows_than_one_in_a_hundred_are_refused(path: Path) -> None:
    times: list[object] = list(range(1000))
    times[100:1000:100] = ["x"] * 9
    times[30] = ""
    assert len(read(path, times).table) == 990
    times[777] = "x"
    with pytest.raises(TraceError) as error:
        read(path, times)
    assert str(error.value) == (
        f"{path}: 11 of 1000 rows cannot be used, more than 1%; the first is line 32: arrival_time is missing "
        "(trace.on_bad_row=drop leaves out any number)"
    )
    assert len(read(path, times, on_bad_row="drop").table) == 989


def test_many_times_far_outside_are_refused(path: Path) -> None:
    """A fifth of the times in milliseconds, the others in seconds."""
    times = [1.7e9 + i if i % 5 else 1.7e12 + i * 1000 for i in range(1000)]
    with pytest.raises(TraceError, match="200 of 1000 rows cannot be used"):
        read(path, times)


def test_failed_requests_of_burstgpt_are_no_damage(path: Path) -> None:
    rows = "".join(f"{i},m,{i % 2},1,9,l\n" for i in range(10))
    path.write_text("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n" + rows)
    assert len(load_trace(BurstGptTrace(path=str(path)), seed=0).table) == 5
    path.write_text(path.read_text() + "x,m,1,1,9,l\n")
    with pytest.raises(TraceError, match="1 of 11 rows cannot be used, more than 1%; the first is line 12"):
        load_trace(BurstGptTrace(path=str(path)), seed=0)


@pytest.mark.parametrize(
    "trace",
    [
        AzureTrace(path=str(TRACES / "azure2023/AzureLLMInferenceTrace_conv.csv")),
        MooncakeTrace(path=str(TRACES / "mooncake/conversation_trace.jsonl")),
        BurstGptTrace(path=str(TRACES / "burstgpt/BurstGPT_1_first400rows.csv")),
    ],
    ids=lambda trace: trace.kind,
)
def test_no_row_of_a_real_trace_is_far_outside(trace: AzureTrace | MooncakeTrace | BurstGptTrace) -> None:
    if not Path(trace.path).exists():
        pytest.skip(f"{trace.path} is not here")
    assert FAR_OUTSIDE not in load_trace(trace, seed=0).bad_rows


bursts = st.tuples(
    st.floats(0, 100 * DAY), st.integers(1, 60), st.sampled_from([1e-6, 0.1, 1.0, 60.0])
)  # start in s, requests, s between them


@given(st.lists(bursts, min_size=1, max_size=8), st.integers(0, 100), st.sampled_from([1, 1000]))
def test_what_is_far_outside_is_rare_or_years_away(parts: list[tuple[float, int, float]], seed: int, unit: int) -> None:
    times = np.concatenate([start + np.arange(count) * gap for start, count, gap in parts])
    times = np.random.default_rng(seed).permutation(times) * unit
    marked = far_outside(times, unit)
    good = np.sort(times[~marked])
    assert marked.sum() <= 2 * max(1, len(times) // 100)
    if marked.any():
        distances = np.maximum(good[0] - times[marked], times[marked] - good[-1])
        assert (distances > DAY * unit).all()
    assert not far_outside(np.sort(times) % (DAY * unit), unit).any()  # within a day, nothing is


@given(st.integers(10, 300), st.floats(1e-3, 1e4), st.floats(1.0, 9.0), st.integers(0, 99))
def test_a_damaged_time_is_found_wherever_it_is(n: int, gap: float, digits: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    times = 1.7e9 + np.cumsum(rng.exponential(gap, n))
    span = times[-1] - times[0]
    row = int(rng.integers(n))
    times[row] += rng.choice([-1, 1]) * max(11 * span, 2 * DAY) * 10**digits
    assert np.flatnonzero(far_outside(times, 1)).tolist() == [row]


@given(st.integers(2, 40), st.integers(11, 500), st.integers(0, 99))
def test_nights_and_weekends_are_no_damage(days: int, per_day: int, seed: int) -> None:
    """Eight busy hours a day, on five days of seven; the last day has a single request."""
    rng = np.random.default_rng(seed)
    starts = [day * DAY for day in range(days) if day % 7 < 5]
    times = [np.sort(start + rng.uniform(0, 8 * HOUR, per_day)) for start in starts]
    times[-1] = times[-1][:1] if len(times) > 1 else times[-1]
    assert not far_outside(np.concatenate(times), 1).any()


def test_times_are_not_checked_where_other_arrivals_replace_them(path: Path, tmp_path: Path) -> None:
    write(path, ["x", 1e300, 3, -5, ""])
    settings = config("progress=false", "plots=false", "trace=csv", f"trace.path={path}", "arrival=constant")
    execute_in(tmp_path / "out", settings)
    trace = load_trace(CsvTrace(path=str(path)), seed=0, with_times=False)
    assert trace.table["num_prompt_tokens"].tolist() == [1, 2, 3, 4, 5]
    assert not trace.has_times and trace.bad_rows == {} and trace.notes == ()
    with pytest.raises(TraceError, match="2 of 5 rows|3 of 5 rows"):
        load_trace(CsvTrace(path=str(path)), seed=0)
