"""Report pages as files: self-contained, small, escaped, and with what a colleague needs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from harness.errors import TwinServeError
from harness.figures.charts.capacity import capacities_chart
from harness.figures.pages import write_page
from tests.harness.builders import ROOT
from tests.harness.figures.pages.builders import (
    HOSTILE,
    PAGES,
    Parsed,
    capacity_document,
    search_document,
    validation_document,
    write_run,
    written,
)

_TAGS = {
    "html", "head", "meta", "title", "style", "body", "header", "div", "h1", "h2", "h3", "span", "button", "main", "p",
    "section", "figure", "figcaption", "script", "table", "caption", "thead", "tbody", "tr", "th", "td", "ul", "li",
    "dl", "dt", "dd", "pre", "code", "details", "summary", "footer", "strong", "small",
}  # fmt: skip
_LARGEST = 5_000_000


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make(tmp_path_factory.mktemp(name) / "result") for name, make in PAGES.items()}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_one_small_file_that_loads_nothing(pages: dict[str, Path], name: str) -> None:
    page = Parsed(pages[name])
    assert pages[name].stat().st_size < _LARGEST
    policies = [each["content"] for tag, each in page.tags if tag == "meta" and "http-equiv" in each]
    assert policies and (policies[0] or "").startswith("default-src 'none'")
    for tag, attributes in page.tags:
        assert not attributes.keys() & {"src", "href", "srcset", "data", "action", "poster"}, (tag, attributes)
    styles = pages[name].read_text(encoding="utf-8").partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in styles and "@import" not in styles


@pytest.mark.parametrize("name", PAGES)
def test_names_are_text_and_never_markup(pages: dict[str, Path], name: str) -> None:
    page = Parsed(pages[name])
    assert {tag for tag, _ in page.tags} <= _TAGS
    assert HOSTILE in page.text
    assert len(page.scripts) == 4, "Bokeh, its API, the figures and the page"
    for _, attributes in page.tags:
        assert not any(key.startswith("on") for key in attributes)


@pytest.mark.parametrize("name", PAGES)
def test_tables_have_what_their_sorting_needs(pages: dict[str, Path], name: str) -> None:
    tables = Parsed(pages[name]).tables
    assert tables
    for head, *rows in tables:
        assert rows
        assert all(cell["tag"] == "th" and cell["aria-sort"] == "none" for cell in head)
        for row in rows:
            assert len(row) == len(head)
            for cell, above in zip(row, head, strict=True):
                is_number = above.get("class") == "number"
                assert ("data-value" in cell) == is_number
                if is_number and cell["data-value"]:
                    assert np.isfinite(float(cell["data-value"]))


@pytest.mark.parametrize("name", PAGES)
def test_figures_have_as_many_values_on_each_axis(pages: dict[str, Path], name: str) -> None:
    figures = Parsed(pages[name]).figures
    assert figures
    for figure in figures:
        for series in figure["series"]:
            assert len(series["x"]) == len(series["y"]) > 0
            for texts in series["texts"].values():
                assert len(texts) == len(series["x"])
            for axis in ("x", "y"):
                if figure[axis]["log"]:
                    assert all(value is None or value > 0 for value in series[axis])


def test_the_page_of_a_run_says_how_to_reproduce_it(pages: dict[str, Path]) -> None:
    text = Parsed(pages["run"]).text
    assert "python run.py arrival.rate=30" in text
    assert "0123abc" in text and "python 3.12.1" in text and "seed" in text
    assert "scheduler.policy" in text, "the settings are there"


def test_the_page_of_a_run_gives_the_verdict_and_the_slo(tmp_path: Path) -> None:
    summary = write_run(tmp_path)
    text = Parsed(written(write_page(tmp_path))).text
    assert "Is p99 TTFT at most 500 ms, p99 TPOT at most 40 ms?" in text
    word = {True: "SLO met:", False: "SLO missed:"}[summary["slo_met"]]
    assert word in text
    word = {"stable": "Stable:", "overloaded": "Overloaded:", "unclear": "Unclear"}[summary["verdict"]]
    assert word in text


def test_results_of_earlier_versions_have_a_page_too(tmp_path: Path) -> None:
    summary = write_run(tmp_path)
    new = ("slo_", "offered_", "served_", "queue_growth", "verdict", "ramp_up", "drain", "num_gpus", "interactivity",
           "cost_model", "arrival_window", "window_output", "output_throughput_per")  # fmt: skip
    older = {
        key: value for key, value in summary.items() if not key.startswith(new) and not key.endswith(("_low", "_high"))
    }
    older.pop("config")
    older.pop("environment")
    (tmp_path / "summary.json").write_text(json.dumps(older))
    page = Parsed(written(write_page(tmp_path)))
    assert "Output throughput" in page.text and "Overloaded" not in page.text and "SLO m" not in page.text
    assert len(page.figures) >= 6


def test_a_run_that_ended_early_says_so(tmp_path: Path) -> None:
    summary = write_run(tmp_path)
    (tmp_path / "summary.json").write_text(
        json.dumps({**summary, "complete": False, "ended_early": "the GPU was lost"})
    )
    text = Parsed(written(write_page(tmp_path))).text
    assert "INCOMPLETE" in text and "the GPU was lost" in text


def test_the_page_of_a_sweep_names_failed_jobs_and_differences(pages: dict[str, Path]) -> None:
    page = Parsed(pages["sweep"])
    assert f"failed: no such trace {HOSTILE}" in page.text
    assert "difference from" in page.text and "+0.0" in page.text
    assert "TTFT in SLO" in page.text and "TPOT in SLO" in page.text and "E2EL in SLO" not in page.text
    curves = [series for series in page.figures[0]["series"] if series["kind"] == "line"]
    assert [len(series["x"]) for series in curves] == [3, 3], "three rates on each curve"


def test_the_page_of_a_search_has_its_trials_also_those_given_up(tmp_path: Path) -> None:
    for name, has_capacities in (("a", False), ("b", True)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "search.json").write_text(json.dumps(search_document()))
        if has_capacities:
            (folder / "capacity.json").write_text(json.dumps(capacity_document()))
        page = Parsed(written(write_page(folder)))
        assert "Trials" in page.text and f"fails at once {HOSTILE}" in page.text
        assert "CAPACITY" in page.text if has_capacities else "SEARCH" in page.text


def test_step_times_of_two_kinds_stand_before_the_best(tmp_path: Path) -> None:
    sources = ["step times: measured kernels of a on b", "step times: cost=roofline, roofline of the device's rates"]
    for name, document in (("capacity", capacity_document()), ("search", search_document())):
        for row, source in zip(document["rows"], [*sources, sources[0]], strict=False):
            row["cost_source"] = source
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"{name}.json").write_text(json.dumps(document))
        text = Parsed(written(write_page(folder))).text
        told = text.index("configurations have step times from the roofline")
        assert told < text.index("Best:")


def test_the_page_of_a_search_has_each_configuration_and_its_probes(pages: dict[str, Path]) -> None:
    page, document = Parsed(pages["capacity"]), capacity_document()
    for text in (document["question"], document["sentence"], document["command"], "9.00 to 10.0"):
        assert text in page.text
    assert len(page.tables[0]) == 1 + 4 and len(page.tables[1]) == 1 + 6
    probes = page.figures[-1]
    assert [mark["value"] for mark in probes["marks"]] == [500]
    assert [series["texts"]["SLO"] for series in probes["series"][:2]] == [["holds"], ["missed"]]


def test_the_page_of_one_configuration_does_not_compare_it(tmp_path: Path) -> None:
    document = {**capacity_document(), "rows": capacity_document()["rows"][:1], "best": 0}
    (tmp_path / "capacity.json").write_text(json.dumps(document))
    page = Parsed(written(write_page(tmp_path)))
    assert "Capacities" not in page.text and "Best:" not in page.text and "Found:" in page.text
    assert [series["name"] for figure in page.figures for series in figure["series"]] == ["", ""]
    assert [len(table) for table in page.tables] == [1 + 2], "the probes alone"
    assert not page.figures[0]["y"]["log"], "a logarithmic axis from 250 to 600 ms has a tick or none"


def test_the_page_of_servers_has_one_fewer_and_twice_the_load(tmp_path: Path) -> None:
    def probe(value: float, holds: bool, **more: Any) -> dict[str, Any]:
        return {"value": value, "holds": holds, "verdict": "stable", "ttft_ms": 7000 / value, **more}

    row = {**capacity_document()["rows"][0], "capacity": 21, "low": 20, "high": 22, "rate": 60.0, "num_gpus": 42}
    row |= {"probes": [probe(20, False), probe(21, True)], "cost_per_hour": 168.0, "per_gpu": 1.43}
    row["one_fewer"] = {"servers": 20, "capacity": 56.0, "at_load": probe(20, False)}
    same = probe(21, False, verdict="overloaded")
    twice = {"rate": 120.0, "same": same, "capacity": 40, "cost_per_hour": 320.0, "probes": [same, probe(40, True)]}
    row["twice"] = twice
    document = {**capacity_document(), "over": "replicas", "unit": "servers", "best": 0, "rows": [row]}
    (tmp_path / "capacity.json").write_text(json.dumps(document))
    page = Parsed(written(write_page(tmp_path)))
    told = [
        [float(cell.get("data-value") or 0) or str(cell["class"]) for cell in row[1:]] for row in page.tables[0][1:]
    ]
    assert told == [
        [60, 21, "good", 7000 / 21, 168],
        [60, 20, "bad", 350, "number"],
        [56, 20, "good", "number", "number"],
        [120, 21, "bad", "number", 168],
        [120, 40, "good", 175, 320],
    ]
    assert "overloaded" in page.text and "missed" in page.text
    assert "Servers" in page.text and "servers per GPU" not in page.text
    chart = capacities_chart([{**row, "name": "a"}], "servers")
    assert chart is not None and [panel.x.label for panel in chart.panels] == ["servers", "requests/s per GPU"]


def test_a_search_that_found_nothing_has_a_page(tmp_path: Path) -> None:
    document = {**capacity_document(), "rows": capacity_document()["rows"][3:], "best": None}
    (tmp_path / "capacity.json").write_text(json.dumps(document))
    assert "No configuration holds the SLO." in Parsed(written(write_page(tmp_path))).text


def test_the_page_of_a_validation_shows_errors_beside_their_noise(pages: dict[str, Path]) -> None:
    page = Parsed(pages["validation"])
    assert "TTFT +2.5 % (noise: ±3.0 %)" in page.text
    names = [[series["name"] for series in figure["series"]] for figure in page.figures]
    distributions, levels = [["repeats", "MEASURED", "SIMULATED"]], [["MEASURED", "SIMULATED"]]
    assert names == distributions + [["error of the simulation", "noise floor"]] + levels + [["", ""]]


def test_a_validation_of_an_earlier_version_has_no_curves(tmp_path: Path) -> None:
    write_run(tmp_path)
    (tmp_path / "validation.json").write_text(json.dumps(validation_document()))
    assert len(Parsed(written(write_page(tmp_path))).figures) == 1


def test_the_page_of_public_closed_loops_reads_their_rows(tmp_path: Path) -> None:
    of = {"median_abs_pct": 3.0, "p90_abs_pct": 9.0, "median_pct": 1.0}
    document = {"kind": "inferencex", "measured": HOSTILE, "errors": {"ttft": of, "tpot": of}, "left_out": {"why": 2}}
    document["excluded"] = {"faster than light": ["a", "b", "c"]}
    (tmp_path / "validation.json").write_text(json.dumps(document))
    rows = {"isl": [1024], "osl": [512], "tensor_parallel_size": [1], "concurrency": [8]}
    for name in ("ttft", "tpot"):
        rows |= {f"{name}_ms": [100], f"simulated_{name}_ms": [104], f"{name}_error_pct": [4]}
    pd.DataFrame(rows).to_csv(tmp_path / "errors.csv", index=False)
    page = Parsed(written(write_page(tmp_path)))
    assert "2 rows left out: why" in page.text and "+4.00" in page.text
    assert "3 rows cannot be right, and are not in these errors: faster than light" in page.text


@pytest.mark.parametrize("name", ["capacity.json", "validation.json", "summary.json"])
@pytest.mark.parametrize("text", ["[1, 2]", "{", ""])
def test_damaged_results_end_in_one_line(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(TwinServeError, match=name) as caught:
        write_page(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_result_has_no_page(tmp_path: Path) -> None:
    assert write_page(tmp_path) is None
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_bokeh_is_not_imported_to_write_a_page(tmp_path: Path) -> None:
    write_run(tmp_path)
    code = "import sys, pathlib, harness.cli; from harness.figures.pages import write_page; "
    code += f"write_page(pathlib.Path({str(tmp_path)!r})); assert 'bokeh' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    assert re.search(r"Bokeh\.Plotting\.figure", (tmp_path / "report.html").read_text(encoding="utf-8"))
