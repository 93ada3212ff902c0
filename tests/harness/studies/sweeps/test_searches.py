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


def test_several_run_at_a_time() -> None:
    both = threading.Barrier(2, timeout=5)
    found = searches.Searches(1)
    for _ in range(2):
        found.add(both.wait)
    found.wait()
    assert not both.broken


def test_an_interrupt_begins_no_other() -> None:
    begun: list[int] = []

    def job(number: int) -> None:
        begun.append(number)
        if number == 0:
            raise KeyboardInterrupt
        found._is_over.wait(5)  # as a search does whose processes are ended

    found = searches.Searches(1)
    for number in range(9):
        found.add(partial(job, number))
    with pytest.raises(KeyboardInterrupt):
        found.wait()
    assert len(begun) <= 3


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
