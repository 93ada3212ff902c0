"""A small run of the experiment on verdicts: all of them are right."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from experiments import verdict


@pytest.fixture(autouse=True)
def without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of the repository is not asked for with every run."""
    monkeypatch.setattr("harness.studies.collecting.environment", dict)


@pytest.mark.parametrize("case", ["512 seats", pytest.param("KV pool", marks=pytest.mark.slow)])
@pytest.mark.long
def test_verdicts_on_short_runs_are_right(case: str) -> None:
    rate = verdict.capacity(case, 3000)
    for load, expected in verdict.LOADS.items():
        found = verdict.score(case, 500, load, rate, range(3), {})
        assert found.verdicts == {expected: 3}
        assert found.offered_loads == pytest.approx([load] * 3, rel=0.12)


def test_the_committed_result_reaches_the_bar() -> None:
    rows = json.loads((Path(__file__).parents[2] / "experiments/results/verdict.json").read_text())["rows"]
    assert {row["case"] for row in rows} == set(verdict.CASES)
    assert sum(row["right"] for row in rows) >= 0.99 * sum(row["runs"] for row in rows)
    assert {row["num_requests"] for row in rows} >= {500, 2000}


def test_the_experiment_writes_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "LONG_RUN", 1500)
    monkeypatch.setattr(verdict, "capacity", lambda case: 24.0)
    out = tmp_path / "verdict.json"
    monkeypatch.setattr(
        sys, "argv", ["verdict", "--runs", "1", "--requests", "500", "--cases", "256 seats", "--out", str(out)]
    )
    verdict.main()
    stored = json.loads(out.read_text())
    assert [row["verdicts"] for row in stored["rows"]] == [{"stable": 1}, {"overloaded": 1}]
    command = stored["provenance"]["command"]
    assert "experiments.verdict" in command
    assert "'<verdict.json>'" in command and str(tmp_path) not in command, "paths of a machine are not told"
