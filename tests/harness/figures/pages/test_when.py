"""When report.html is written: after a run, once for a sweep, and by task=report for earlier results."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.results.stored.files import REPORT
from tests.harness.builders import Launch, launcher
from tests.harness.figures.pages.builders import Parsed, validation_page, write_run

_SMALL = ("cost=roofline", "trace.num_requests=12", "progress=false")


@pytest.fixture(autouse=True)
def _no_other_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.studies.comparison.comparison.write_comparison_charts", lambda *_: [])

    def drawn(*_: object) -> None:
        raise AssertionError("files of a run's figures were not asked for")

    monkeypatch.setattr("harness.figures.write_run_charts", drawn)


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Launch:
    return launcher(monkeypatch, tmp_path)


def test_a_run_leaves_its_page_unless_without_plots(launch: Launch, tmp_path: Path) -> None:
    assert launch(*_SMALL, "hydra.run.dir=a") == 0
    page = Parsed(tmp_path / "a" / REPORT)
    assert "python run.py cost=roofline trace.num_requests=12 progress=false" in page.text
    assert launch(*_SMALL, "plots=false", "hydra.run.dir=a") == 0
    assert not (tmp_path / "a" / REPORT).exists(), "the page of an earlier run is not that of this one"


@pytest.mark.long
def test_a_sweep_leaves_one_page(launch: Launch, tmp_path: Path) -> None:
    assert launch("-m", *_SMALL, "plots=false", "block_size=16,32", "hydra.sweep.dir=s") == 0
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob(REPORT)] == [Path("s", REPORT)]
    page = Parsed(tmp_path / "s" / REPORT)
    assert "2 configurations compared" in page.text
    assert "python run.py -m cost=roofline" in page.text and "block_size=16,32" in page.text


@pytest.mark.long
def test_task_report_writes_the_page_of_earlier_results(launch: Launch, tmp_path: Path) -> None:
    write_run(tmp_path / "run", trace="sharegpt")
    validation_page(tmp_path / "validation")
    write_run(tmp_path / "validation", trace="sharegpt")
    for name, title in (("run", "qwen3-8b on h100-80gb"), ("validation", "Simulated against measured")):
        assert launch("task=report", f"results=[{name}]", "hydra.run.dir=page") == 0
        assert title in Parsed(tmp_path / "page" / REPORT).text
    assert launch("task=report", "results=[run,validation]", "hydra.run.dir=page") == 0
    assert "compared" in Parsed(tmp_path / "page" / REPORT).text
