"""Searches for capacities in a sweep run several at a time and find what each finds alone."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.studies.sweeps import searches
from tests.harness.builders import ROOT

SMALL = (
    "task=capacity", "model=tiny", "device=laptop-cpu", "max_num_batched_tokens=1024", "metrics.slo.ttft_ms=500",
    "arrival.rate=2", "capacity.num_requests=300", "capacity.max_probes=6", "plots=false",
)  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searches, "_waiting", [])
    monkeypatch.setattr(searches, "_most_workers", [1])


def test_several_run_at_a_time() -> None:
    both = threading.Barrier(2, timeout=5)
    searches._waiting += [both.wait, both.wait]  # type: ignore[list-item]
    searches.run_all()
    assert not searches._waiting and not both.broken


def test_an_interrupt_begins_no_other() -> None:
    begun: list[int] = []
    goes_on = threading.Event()

    def job(number: int) -> None:
        begun.append(number)
        if number == 0:
            raise KeyboardInterrupt
        goes_on.wait(0.05)

    searches._waiting += [partial(job, number) for number in range(9)]
    with pytest.raises(KeyboardInterrupt):
        searches.run_all()
    assert len(begun) <= 4


@pytest.mark.long
def test_a_sweep_finds_what_each_search_finds_alone(tmp_path: Path) -> None:
    def searched(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "run.py", *command, *SMALL], cwd=ROOT, capture_output=True, text=True, check=False
        )

    def row(folder: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((tmp_path / folder / "capacity.json").read_text(encoding="utf-8"))["rows"][0]
        return found

    sweep = searched("-m", "max_num_seqs=4,0,8", "capacity.workers=2", f"hydra.sweep.dir={tmp_path / 'all'}")
    assert sweep.returncode == 1, sweep.stderr
    assert "failed: max_num_seqs=0: must be" in sweep.stderr, "the others go on"
    for seats in (4, 8):
        assert (
            searched(f"max_num_seqs={seats}", "capacity.workers=1", f"hydra.run.dir={tmp_path / str(seats)}").returncode
            == 0
        )
        assert row(f"all/max_num_seqs={seats}")["probes"] == row(str(seats))["probes"]
