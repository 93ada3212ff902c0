"""Result folders: what is written comes back, and a folder that is not whole says so."""

from __future__ import annotations

import json
import math
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from harness.config import MetricsConfig
from harness.errors import TwinServeError
from harness.results.metrics import summarize
from harness.results.stored import environment as module
from harness.results.stored import files, parquet
from harness.results.stored.environment import environment
from harness.results.stored.files import read_results, read_summary, write_results, write_whole
from harness.results.tables import Gaps, RunResult
from tests.harness.results.builders import heavy_tailed_requests, run_toy_engine

FILES = {"requests.parquet", "steps.parquet", "gaps.parquet", "summary.json"}


def toy(until_s: float = np.inf) -> tuple[RunResult, dict[str, Any]]:
    result = run_toy_engine(heavy_tailed_requests(30, rate=5), until_s=until_s)
    return result, summarize(result, MetricsConfig())


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_table_written_in_parts_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pd.DataFrame({"n": np.arange(7), "time": [0.5, *[math.nan] * 6]})
    table["error"] = pd.Series([None] * 6 + ["too long"], dtype="object")  # the first part has no text
    table["status"] = pd.Categorical(["b"] * 6 + ["a"], categories=["a", "b", "c"])
    monkeypatch.setattr(parquet, "_PART_ROWS", 3)
    files.write_table(tmp_path / "parts.parquet", table)
    table.to_parquet(tmp_path / "whole.parquet", index=False)
    parts, whole = (pd.read_parquet(tmp_path / f"{name}.parquet") for name in ("parts", "whole"))
    pd.testing.assert_frame_equal(parts, whole)


def test_tables_are_read_as_pandas_reads_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"n": rng.integers(-5, 5, 50), "time": rng.random(50), "flag": rng.random(50) < 0.5})
    table["some"] = table["n"].where(table["flag"]).astype("Int64")
    table["gap"] = table["time"].where(table["flag"])
    table["status"] = pd.Categorical(rng.choice(["b", "a"], 50), categories=["a", "b", "c"])
    table["error"] = table["status"].astype(object).where(table["flag"], np.nan)
    table["nothing"] = None
    for part in (table, table[:0], table[table["flag"]]):
        part.to_parquet(tmp_path / "t.parquet", index=False, row_group_size=7)
        read, asked = parquet.read_parquet(tmp_path / "t.parquet"), ["gap", "status", "n"]
        whole = pd.read_parquet(tmp_path / "t.parquet").astype({"error": object})
        whole = whole.astype({"some": float if part["some"].isna().any() else int})
        pd.testing.assert_frame_equal(read.frame(), whole)
        pd.testing.assert_frame_equal(parquet.read_parquet(tmp_path / "t.parquet", asked).frame(), whole[asked])
    with pytest.raises(KeyError, match="other"):
        parquet.read_parquet(tmp_path / "t.parquet", ["n", "other"])


@pytest.mark.parametrize("until_s", [math.inf, 2.0])
def test_what_is_written_comes_back(tmp_path: Path, until_s: float) -> None:
    result, summary = toy(until_s)
    folder = tmp_path / "deep" / "run"
    write_results(result, summary, folder)
    assert names(folder) == FILES
    back, back_summary = read_results(folder)
    pd.testing.assert_frame_equal(back.requests, result.requests)
    pd.testing.assert_frame_equal(back.steps, result.steps)
    assert back.complete is result.complete is (until_s == math.inf)
    assert (back.num_blocks, back.block_size) == (result.num_blocks, result.block_size)
    assert back_summary == summary
    again = summarize(back, MetricsConfig())
    sums = ("mean_itl_ms", "std_itl_ms")  # merged gaps are summed in another order
    assert {name: again[name] for name in sums} == pytest.approx({name: summary[name] for name in sums})
    assert {**again, **{name: summary[name] for name in sums}} == summary


def test_equal_gaps_are_merged_and_none_is_lost(tmp_path: Path) -> None:
    result, summary = toy()
    gaps = Gaps(np.array([0.25, 0.5, 0.25]), np.array([2, 3, 5]))
    write_results(replace(result, gaps=gaps), summary, tmp_path)
    back, _ = read_results(tmp_path)
    assert back.gaps.values.tolist() == [0.25, 0.5]
    assert back.gaps.weights.tolist() == [7, 3]


def test_a_failed_write_leaves_no_summary_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in a new folder nor in one that held an earlier run: old and new files must not look like one run."""
    result, summary = toy()
    write_results(result, summary, tmp_path)
    (tmp_path / "failed.json").write_text("{}")
    intact = (tmp_path / "steps.parquet").read_bytes()

    def disk_full(path: Path, table: object) -> None:
        path.write_bytes(b"PAR1 half a file")
        raise OSError("no space left on device")

    monkeypatch.setattr(parquet, "write_parquet", disk_full)
    with pytest.raises(OSError, match="no space"):
        write_results(result, summary, tmp_path)
    assert names(tmp_path) == FILES - {"summary.json"}
    assert (tmp_path / "steps.parquet").read_bytes() == intact
    with pytest.raises(TwinServeError, match=r"no summary\.json"):
        read_results(tmp_path)


def test_write_whole_keeps_the_old_file_when_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "figure.png"
    write_whole(path, lambda temporary: temporary.write_text("old"))

    def broken(temporary: Path) -> None:
        assert temporary.suffix == ".png" and temporary.parent == tmp_path
        temporary.write_text("half")
        raise ValueError

    with pytest.raises(ValueError):
        write_whole(path, broken)
    assert names(tmp_path) == {"figure.png"}
    assert path.read_text() == "old"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "summary.json").unlink(), r"no summary\.json"),
        (lambda folder: (folder / "summary.json").write_text("{"), r"summary\.json: (not JSON|cannot be read)"),
        (
            lambda folder: (folder / "summary.json").write_bytes(b"\xff\xfe"),
            r"summary\.json: (not JSON|cannot be read)",
        ),
        (lambda folder: (folder / "summary.json").write_text("[1]"), "not the summary of a run"),
        (lambda folder: (folder / "summary.json").write_text('{"complete": true}'), "at least block_size, complete"),
        (lambda folder: (folder / "steps.parquet").unlink(), r"steps\.parquet: missing"),
        (lambda folder: (folder / "requests.parquet").write_text("not parquet"), "not readable as Parquet"),
        (lambda folder: pd.DataFrame({"x": [1]}).to_parquet(folder / "gaps.parquet"), r"gaps\.parquet: not readable"),
    ],
)
def test_a_spoilt_folder_is_a_one_line_error(tmp_path: Path, spoil: Any, message: str) -> None:
    write_results(*toy(), tmp_path)
    spoil(tmp_path)
    with pytest.raises(TwinServeError, match=message) as error:
        read_results(tmp_path)
    assert "\n" not in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(TwinServeError, match="nowhere: no such folder"):
        read_summary(tmp_path / "nowhere")


def test_summary_is_strict_json(tmp_path: Path) -> None:
    result, summary = toy()
    write_results(result, {**summary, "mean_ttft_ms": math.nan, "p99_ttft_ms": np.float64(np.inf)}, tmp_path)
    text = (tmp_path / "summary.json").read_text()
    back = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert back["mean_ttft_ms"] is None and back["p99_ttft_ms"] is None


def test_environment_is_json_and_names_versions() -> None:
    found = environment()
    assert json.loads(json.dumps(found)) == found
    assert found["numpy"] == np.__version__ and found["pandas"] == pd.__version__
    assert found["cpu_cores"] >= 1 and found["memory_bytes"] > 2**20


def test_git_state_of_a_clean_and_a_changed_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    source = tmp_path / "harness" / "results" / "stored" / "environment.py"
    source.parent.mkdir(parents=True)
    source.write_text("")
    monkeypatch.setattr(module, "__file__", str(source))
    assert (environment()["git_revision"], environment()["git_dirty"]) == (None, None)
    git("init", "-q")
    assert environment()["git_revision"] is None, "no commit yet"
    git("add", ".")
    git("commit", "-q", "-m", "first")
    assert (environment()["git_revision"], environment()["git_dirty"]) == (git("rev-parse", "HEAD"), False)
    source.write_text("changed")
    assert environment()["git_dirty"] is True
    installed = tmp_path / "site-packages" / "harness" / "results" / "stored"
    installed.mkdir(parents=True)
    monkeypatch.setattr(module, "__file__", str(installed / "environment.py"))
    assert environment()["git_revision"] is None, "installed inside somebody else's repository"
