"""Searches for capacities in a sweep run several at a time and find what each finds alone."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from harness.config import parse
from harness.studies.capacity.capacity import find
from harness.studies.sweeps import searches
from tests.harness.builders import ROOT, composed

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
    command = ["-m", "max_num_seqs=4,0,8", "capacity.workers=2", f"hydra.sweep.dir={tmp_path / 'all'}", *SMALL]
    sweep = subprocess.run([sys.executable, "run.py", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert sweep.returncode == 1, sweep.stderr
    assert "failed: max_num_seqs=0: must be" in sweep.stderr, "the others go on"
    for seats in (4, 8):
        alone = find(parse(composed(f"max_num_seqs={seats}", "capacity.workers=1", *SMALL)), tmp_path / str(seats), ())
        found = json.loads((tmp_path / f"all/max_num_seqs={seats}/capacity.json").read_text(encoding="utf-8"))
        assert len(found["rows"][0]["probes"]) > 2
        assert found["rows"][0]["probes"] == json.loads(json.dumps(alone["rows"][0]["probes"]))
