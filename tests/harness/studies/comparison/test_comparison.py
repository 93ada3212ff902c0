"""The combined table: what it says about whole, interrupted and failed runs."""

from __future__ import annotations

import io
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from harness.config.schema.tasks.plotting import PlotConfig
from harness.errors import TwinServeError
from harness.studies.comparison import comparison
from harness.studies.comparison.combine import combine
from harness.studies.comparison.comparison import write_comparison
from harness.studies.sweeps import sweep
from tests.harness.results.builders import store


def fail(folder: Path, error: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "failed.json").write_text(json.dumps({"error": error, "traceback": "long\nlong"}))
    return folder


def test_combine_has_a_row_per_folder_and_a_column_per_swept_key(tmp_path: Path) -> None:
    base = {"task": "run", "block_size": 16, "seed": 0, "scheduler": {"policy": "mixed", "watermark": 0.01}}
    folders = [
        store(tmp_path / "0", {**base, "progress": True, "num_blocks": None}),
        store(tmp_path / "1", {**base, "block_size": 64, "progress": False, "num_blocks": 300}),
        store(tmp_path / "2", {**base, "scheduler": {"policy": "prefill_first", "watermark": 0.01}}, until_s=1.0),
        fail(tmp_path / "3", "model does not fit"),
    ]
    table = combine(folders)
    assert table.attrs["parameters"] == ["block_size", "scheduler.policy", "num_blocks"]
    assert table["run"].tolist() == ["0", "1", "2", "3"]
    assert table["folder"].tolist() == [str(folder) for folder in folders]
    assert table["status"].tolist() == ["complete", "complete", "interrupted", "failed"]
    assert table["error"].tolist()[3] == "model does not fit" and table["error"].isna().tolist() == [True] * 3 + [False]
    assert table["block_size"].tolist()[:3] == [16, 64, 16]
    assert table["num_blocks"].tolist()[:3] == [300, 300, 300], "what was used, not what was left open"
    assert table["scheduler.policy"].tolist()[:3] == ["mixed", "mixed", "prefill_first"]
    summary = json.loads((folders[1] / "summary.json").read_text())
    flat = {name: value for name, value in summary.items() if not isinstance(value, (dict, list))}
    row = table.iloc[1].to_dict()
    assert flat.keys() <= row.keys()
    assert {name: row[name] for name, value in flat.items() if value is not None} == {
        name: value for name, value in flat.items() if value is not None
    }
    assert "traceback" not in table and "config" not in table


def test_keys_that_follow_from_the_kind_or_name_of_their_group_are_no_parameters(tmp_path: Path) -> None:
    a = {"model": {"name": "a", "num_layers": 2}, "arrival": {"kind": "poisson", "rate": 2}}
    b = {"model": {"name": "b", "num_layers": 4}, "arrival": {"kind": "poisson", "rate": 2}}
    c = {"model": {"name": "b", "num_layers": 4}, "arrival": {"kind": "poisson", "rate": 4}}
    folders = [store(tmp_path / str(number), config) for number, config in enumerate((a, b, c))]
    assert combine(folders).attrs["parameters"] == ["model.name"]
    assert combine(folders).attrs["load"] == "arrival.rate"
    d = {"model": {"name": "b", "num_layers": 8}, "arrival": {"kind": "gamma", "rate": 4}}
    folders.append(store(tmp_path / "3", d))
    parameters = combine(folders).attrs["parameters"]
    assert parameters == ["model.name", "model.num_layers", "arrival.kind"]


def test_run_names_are_paths_below_the_common_folder(tmp_path: Path) -> None:
    folders = [store(tmp_path / "sweep" / "1", {}), store(tmp_path / "other", {})]
    assert combine(folders)["run"].tolist() == ["sweep/1", "other"]
    assert combine(folders[:1])["run"].tolist() == ["1"]


def test_a_folder_without_a_result_and_a_missing_one_are_failed_rows(tmp_path: Path) -> None:
    whole, empty, garbled = store(tmp_path / "0", {}), tmp_path / "1", tmp_path / "2"
    empty.mkdir()
    garbled.mkdir()
    (garbled / "failed.json").write_text("[")
    table = combine([whole, empty, garbled, tmp_path / "nowhere"])
    assert table["status"].tolist() == ["complete", "failed", "failed", "failed"]
    assert "no summary.json" in table["error"][1] and "nowhere: no such folder" in table["error"][3]


def test_comparison_is_written_and_printed(tmp_path: Path) -> None:
    folders = [store(tmp_path / f"in/{seqs}", {"max_num_seqs": seqs}) for seqs in (8, 16)]
    folders += [
        store(tmp_path / "in/gpu", {"max_num_seqs": "[auto]"}, simulated=False, engine="gpu"),
        store(tmp_path / "in/cut", {"max_num_seqs": 64}, until_s=1.0),
        fail(tmp_path / "in/bad", "out of [red]memory"),
    ]
    summary = json.loads((folders[0] / "summary.json").read_text(encoding="utf-8"))
    (folders[0] / "summary.json").write_text(json.dumps(summary | {"notes": ["drafts were [bold]assumed"]}))
    stream, out = io.StringIO(), tmp_path / "out"
    plot = PlotConfig(formats=("png",))
    paths, left_out = write_comparison(folders, out, plot, console=Console(file=stream, width=100))
    assert left_out == ["bad"]
    assert sorted(paths) == sorted(out.iterdir())
    names = ["comparison.parquet", "comparison.csv", "configurations.csv"]
    names += ["metrics.png", "frontier.png", "latency.png", "report.html"]
    assert [path.name.removeprefix("comparison_") for path in paths] == names
    stored = pd.read_parquet(paths[0])
    assert stored["run"].tolist() == pd.read_csv(paths[1])["run"].tolist() == ["8", "16", "cut", "gpu", "bad"]
    assert stored["max_num_seqs"].tolist()[:4] == ["8", "16", "64", "[auto]"], "one type per column"
    text = stream.getvalue()
    assert "3 runs SIMULATED, 1 MEASURED" in text
    row = next(line for line in text.splitlines() if line.startswith("[auto]"))
    assert "measured" in row and f"{combine(folders)['output_throughput'][2]:,.0f}" in row
    assert "! interrupted before the end: cut" in text
    assert "! bad failed: out of [red]memory" in text
    note = "8: drafts were [bold]assumed"
    assert f"! {note}" in text and note in (out / "report.html").read_text(encoding="utf-8")


def test_undefined_numbers_are_dashes_in_the_combined_table(tmp_path: Path) -> None:
    folders = [store(tmp_path / "0", {"caching": True}), store(tmp_path / "1", {"caching": False}, until_s=0.02)]
    assert combine(folders)["median_ttft_ms"].isna().tolist() == [False, True]
    stream = io.StringIO()
    write_comparison(folders, tmp_path / "out", console=Console(file=stream, width=100))
    assert not list(tmp_path.rglob("*.png")), "nobody asked for files of figures"
    assert "–" in stream.getvalue() and "nan" not in stream.getvalue()


def test_a_comparison_of_failures_only_is_a_table_without_figures(tmp_path: Path) -> None:
    stream = io.StringIO()
    failures = [fail(tmp_path / "a", "x"), fail(tmp_path / "b", "y")]
    paths, _ = write_comparison(failures, tmp_path, console=Console(file=stream))
    assert [path.suffix for path in paths] == [".parquet", ".csv", ".csv", ".html"]
    assert "! a failed: x" in stream.getvalue() and "! b failed: y" in stream.getvalue()


@pytest.mark.long
def test_many_runs_are_shown_by_throughput(tmp_path: Path) -> None:
    first = store(tmp_path / "run", {})
    summary = json.loads((first / "summary.json").read_text())
    folders = []
    for number in range(45):
        folder = tmp_path / f"{number:02d}"
        folder.mkdir()
        (folder / "requests.parquet").hardlink_to(first / "requests.parquet")
        document = {**summary, "output_throughput": 1000.0 + number, "config": {"num_blocks": number}}
        (folder / "summary.json").write_text(json.dumps(document))
        folders.append(folder)
    stream = io.StringIO()
    write_comparison(folders, tmp_path / "out", console=Console(file=stream, width=80))
    text = stream.getvalue()
    assert "1,044" in text and "1,005" in text and "1,004" not in text
    assert "the 40 of 45 rows with the highest output throughput" in text


def damage_summary(**changes: Any) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps({**summary, **changes}))

    return damage


def damage_requests(**changes: Any) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        pd.read_parquet(folder / "requests.parquet").assign(**changes).to_parquet(folder / "requests.parquet")

    return damage


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no summary": lambda folder: (folder / "summary.json").unlink(),
    "half a summary": lambda folder: (folder / "summary.json").write_bytes(
        (folder / "summary.json").read_bytes()[:500]
    ),
    "deep summary": lambda folder: (folder / "summary.json").write_text("[" * 100_000),
    "text for a number": damage_summary(output_throughput="fast"),
    "NaN": damage_summary(mean_ttft_ms=math.nan),
    "negative": damage_summary(p99_tpot_ms=-1.0),
    "number for text": damage_summary(model=3),
    "list for a number": damage_summary(preemptions=[1]),
    "no blocks": damage_summary(num_blocks=0),
    "simulated?": damage_summary(simulated=None),
    "config is text": damage_summary(config="x"),
    "config is a list": damage_summary(config=["x"]),
    "no requests": lambda folder: (folder / "requests.parquet").unlink(),
    "half the requests": lambda folder: (folder / "requests.parquet").write_bytes(
        (folder / "requests.parquet").read_bytes()[:-200]
    ),
    "holes": lambda folder: (folder / "requests.parquet").write_bytes(
        (data := (folder / "requests.parquet").read_bytes())[:100] + bytes(len(data) - 1000) + data[-900:]
    ),
    "text for times": damage_requests(ttft="soon"),
    "endless": damage_requests(e2el=math.inf),
    "backwards": damage_requests(tpot=-1.0),
    "unknown": damage_requests(ttft=math.nan),
    "a file": lambda folder: folder.rename(folder.with_name("old")) and folder.write_text(""),
    "gone": shutil.rmtree,
}


@pytest.fixture(scope="module")
def three_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    for seed in range(3):
        store(folder / str(seed), {"seed": seed})
    return folder


def test_damaged_folders_are_named_and_the_others_are_compared(
    three_results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {name: tmp_path / name.replace("?", "") for name in ("0", *DAMAGES, "2")}
    for name, folder in folders.items():
        shutil.copytree(three_results / (name if name in "02" else "1"), folder)
        if name in DAMAGES:
            DAMAGES[name](folder)
    monkeypatch.setattr(comparison, "write_comparison_charts", lambda *arguments: [])
    with pytest.raises(TwinServeError, match="^left out of the comparison, for the reasons above: ") as caught:
        sweep.report([str(folder) for folder in folders.values()], tmp_path / "out")
    assert str(caught.value).partition(": ")[2].split(", ") == sorted(folders[name].name for name in DAMAGES)
    stored = pd.read_csv(tmp_path / "out" / "comparison.csv").set_index("folder")
    for name, folder in folders.items():
        assert stored["status"][str(folder)] == ("failed" if name in DAMAGES else "complete"), name
        assert name not in DAMAGES or "\n" not in stored["error"][str(folder)], name


def test_a_measured_run_of_answers_in_one_piece_is_compared(three_results: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(three_results / "1", tmp_path / "whole")
    damage_requests(ttft=math.nan, tpot=math.nan)(folder)
    damage_summary(simulated=False, sampled_steps=True)(folder)
    runs, _, _ = comparison.read_compared([three_results / "0", folder])
    assert set(runs["status"]) == {"complete"}


def test_a_folder_that_is_named_twice_is_compared_once(three_results: Path) -> None:
    names = [str(three_results / "0"), str(three_results), str(three_results / "1" / ".." / "0")]
    assert [folder.name for folder in sweep.expand_results(names)] == ["0", "1", "2"]
