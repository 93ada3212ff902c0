"""Random command lines and damaged files, in short; and proof that the fuzz notices what must not be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.fuzzing import execution, worker
from tests.fuzzing.execution import Outcome, run_case
from tests.fuzzing.figures import problems
from tests.fuzzing.inputs import SMALL
from tests.fuzzing.walk import Case
from tests.harness.builders import ROOT, config, execute_in
from tests.harness.measured.builders import change_summary


@pytest.mark.long
def test_every_case_ends_in_sound_results_or_one_line() -> None:
    """`python -m tests.fuzz_config` runs thousands, those of the real engine included."""
    arguments = ["--cases", "4", "--files", "3", "--no-engine", "--workers", "1"]
    result = subprocess.run(
        [sys.executable, "-m", "tests.fuzz_config", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "7 cases" in result.stdout and "'done': " in result.stdout


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    execute_in(folder, config(*SMALL))
    return folder


@pytest.mark.parametrize(
    "change",
    [
        {"mean_tpot_ms": -1.0},
        {"mean_tpot_ms": 0.0},
        {"p99_ttft_ms": 2e12},
        {"mean_ttft_ms": None},
        {"prefix_cache_hit_rate": 1.5},
        {"output_throughput": 1e15},
        {"completed": 13},
        {"recomputed_tokens": -3},
    ],
    ids=lambda change: "-".join(map(str, *change.items())),
)
def test_figures_that_cannot_be_are_named(change: dict[str, Any], results: Path) -> None:
    before = (results / "summary.json").read_text()
    assert not list(problems(results))
    change_summary(results, **change)
    assert any(next(iter(change)) in problem for problem in problems(results))
    (results / "summary.json").write_text(before)


@pytest.mark.parametrize(("table", "name"), [("requests", "ttft"), ("steps", "duration"), ("gaps", "value_s")])
def test_negative_times_in_a_table_are_named(table: str, name: str, results: Path, tmp_path: Path) -> None:
    path = tmp_path / f"{table}.parquet"
    pd.read_parquet(results / path.name).assign(**{name: -1e-3}).to_parquet(path)
    assert any(name in problem for problem in problems(tmp_path))


def hang(*_: object) -> Outcome:
    while True:
        pass


def sleep(*_: object) -> Outcome:
    time.sleep(100)
    return Outcome("done")


def take_memory(*_: object) -> Outcome:
    taken = bytearray(4 * worker.MEMORY_BYTES)
    return Outcome("done", detail=str(len(taken)))


def die(*_: object) -> Outcome:
    os.kill(os.getpid(), signal.SIGKILL)
    return Outcome("done")


@pytest.mark.parametrize(
    ("action", "signature"),
    [(hang, "hang in "), (sleep, "hang in "), (take_memory, "MemoryError in "), (die, "killed (-9) in ")],
    ids=["hang", "sleep", "memory", "kill"],
)
def test_a_case_that_ends_its_process_is_known_and_stops_no_other(
    action: Callable[..., Outcome], signature: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = Case((), ("bad",)), Case((), ("good",))
    monkeypatch.setattr(worker, "LONGEST_S", 0.2)
    monkeypatch.setattr(worker, "LONGEST_WAIT_S", 0.5 if action == sleep else 90.0)
    monkeypatch.setattr(
        execution, "_launch", lambda case, out: action() if case == bad else (_ for _ in ()).throw(KeyError("seen"))
    )
    outcomes = dict(worker.run_cases([bad, good], num_workers=1))
    assert outcomes[bad].kind == "failed" and outcomes[bad].signature.startswith(signature)
    assert outcomes[good].signature.startswith("KeyError in ")


def test_a_command_line_ends_as_it_would_by_itself(tmp_path: Path) -> None:
    base = tuple(SMALL)
    refused = run_case(Case(base, ("seed=x",), is_whole=True), tmp_path / "whole")
    assert refused.kind == "refused" and refused.detail.startswith("error: seed='x': must be an integer >= 0")
    done = run_case(Case(base, ("seed=1",), is_whole=True), tmp_path / "whole")
    assert done == Outcome("done") and json.loads((tmp_path / "whole" / "summary.json").read_text())
