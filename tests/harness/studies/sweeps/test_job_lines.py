"""The lines of a sweep's jobs: in a terminal with a bar, piped without, and never run into one another."""

import io
import os
import re
import sys
import threading
from pathlib import Path

import pytest

from harness.studies.sweeps.job_lines import JobLine, result_text, shown, tell

SUMMARY = {"output_throughput": 1234.5, "median_ttft_ms": 20.0, "p99_ttft_ms": 88.0}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_piped_there_is_one_plain_line_per_job(capsys: pytest.CaptureFixture[str]) -> None:
    with shown(3, len("block_size=256"), with_bar=True):
        tell(JobLine("block_size=16", "done", result_text(SUMMARY), 2.13))
        tell(JobLine("block_size=256", "skipped", result_text(SUMMARY)))
        tell(JobLine("x" * 100, "failed", "out of memory " * 10))
    out, error = capsys.readouterr()
    assert out.splitlines() == [
        "1/3  block_size=16    1,234 tok/s  TTFT p99 88.0 ms  2.1 s",
        "2/3  block_size=256   1,234 tok/s  TTFT p99 88.0 ms  skipped, done before",
    ]
    assert error.count("\n") == 1 and error.startswith(f"3/3  {'x' * 100}  failed: out of memory out")


def test_in_a_terminal_lines_and_bar_fit_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    with shown(1000, 300, with_bar=True):
        for number in range(3):
            tell(JobLine(f"{'k' * 90}={number}", "done", result_text({**SUMMARY, "slo_met": False}), 12345.6))
    text = re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    lines = re.split("[\r\n]+", text)
    assert max(map(len, lines)) <= 80
    jobs = [line for line in lines if line.strip() and "━" not in line]
    assert len(jobs) == 3 and all("TTFT p99 88.0 ms" in line for line in jobs)
    assert sum("=2 " in line for line in jobs) == 1  # the end of a long name is there, which tells jobs apart
    assert any("3 of 1000 jobs" in line and "left" in line for line in lines)


def test_lines_of_many_writers_stay_whole(capsys: pytest.CaptureFixture[str]) -> None:
    def work(number: int) -> None:
        for job in range(25):
            tell(JobLine(f"job{number}-{job}", "done", "y" * 90, output="printed\n" if number == 0 else ""))

    with shown(None, 0, with_bar=True):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lines = capsys.readouterr().out.splitlines()
    assert lines.count("printed") == 25 and len(lines) == 225
    named = [line for line in lines if line != "printed"]
    assert all(re.fullmatch(r"\d+  job\d-\d+  y{90}  0\.0 s", line) for line in named)
    assert [int(line.split()[0]) for line in named] == list(range(1, 201))


def test_where_nobody_listens_the_line_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    tell(JobLine("seed=1", "done", "text", 1.0))
    tell(JobLine("seed=2", "failed", "no"))
    assert capsys.readouterr() == ("seed=1: text  1.0 s\n", "seed=2: failed: no\n")


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(RuntimeError), shown(1, 1, with_bar=True):
        assert list(tmp_path.iterdir()) == [Path(os.environ["TWINSERVE_JOBS"])]
        raise RuntimeError
    assert "TWINSERVE_JOBS" not in os.environ and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("extra", "expected"),
    [({"verdict": "overloaded", "slo_met": False}, "overloaded"), ({"slo_met": True}, "SLO met"),
     ({"slo_met": False}, "SLO missed"), ({"slo_met": None}, "ms")],
)  # fmt: skip
def test_the_line_ends_with_the_verdict(extra: dict[str, object], expected: str) -> None:
    assert result_text({**SUMMARY, **extra}).endswith(expected)
    assert result_text({"task": "validate"}) == ""
