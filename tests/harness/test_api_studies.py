"""Sweeps, searches for capacity and comparisons by the door for Python."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import harness
from harness import api
from harness.engines.simulated import SimulatedEngine
from harness.errors import ConfigError, TwinServeError
from tests.harness.builders import ROOT
from tests.harness.doors import FEW, ROOFLINE, requests
from tests.harness.doors import silent as silent


@pytest.mark.long
def test_a_sweep_runs_all_combinations(tmp_path: Path) -> None:
    found = harness.sweep(*FEW, "scheduler=mixed,vllm", over={"block_size": np.array([16, 64])}, workers=1)
    names = ["block_size=16", "block_size=64"]
    assert list(found.runs) == [f"scheduler={each},{name}" for each in ("mixed", "vllm") for name in names]
    assert found.table[["scheduler", "block_size"]].drop_duplicates().shape == (4, 2)
    one = found.runs["scheduler=vllm,block_size=64"]
    pd.testing.assert_frame_equal(one.requests, harness.run(*FEW, "scheduler=vllm", "block_size=64").requests)
    page = found.report(tmp_path / "sweep.html")
    assert "4 configurations compared" in page and "max_num_batched_tokens" in page  # the settings of the first run
    assert "scheduler · block_size" in repr(found) and found._repr_html_().startswith("<pre>")


def test_repetitions_are_one_configuration_with_an_interval() -> None:
    table = harness.sweep(*FEW, "seed=range(3)", workers=1).table
    assert table["num_runs"].tolist() == [3] and (table["p99_ttft_ms_low"] < table["p99_ttft_ms_high"]).all()


def test_a_preset_that_is_a_sweep_is_one() -> None:
    found = harness.sweep("experiment=limits_sweep", "trace.num_requests=10", "max_num_seqs=64", workers=1)
    assert len(found.runs) == 3 and all("max_num_seqs" not in name for name in found.runs)


def test_a_sweep_with_a_wrong_value_begins_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "serve", None)
    with pytest.raises(ConfigError, match="block_size=0: must be an integer"):
        harness.sweep(*FEW, "block_size=16,0", workers=1)


def test_a_command_of_vllm_can_be_varied() -> None:
    command = "import_vllm=vllm serve Qwen/Qwen3-8B --max-num-seqs 64 --port 80"
    found = harness.sweep(command, *FEW, over={"max_num_seqs": [8, 16]}, workers=1)
    assert [run.config.max_num_seqs for run in found.runs.values()] == [8, 16]
    assert all("--port: left out" in run.summary["notes"] for run in found.runs.values())
    with pytest.raises(ConfigError, match="^seed: no values"):
        harness.sweep(over={"seed": []})


def test_what_fails_in_a_sweep_does_not_stop_the_others() -> None:
    found = harness.sweep(*FEW, "model=qwen3-8b,llama-3.1-405b", workers=1)
    assert list(found.runs) == ["model=qwen3-8b"] and list(found.failed) == ["model=llama-3.1-405b"]
    assert "! model=llama-3.1-405b failed: " in repr(found)


def test_a_sweep_of_which_all_runs_fail_says_why() -> None:
    found = harness.sweep("seed=1,2", trace="missing.csv", workers=1)
    assert found.table.empty and list(found.failed) == ["seed=1", "seed=2"]
    assert "! seed=2 failed: missing.csv: cannot be read: No such file" in repr(found)


def test_an_interrupt_of_a_sweep_begins_no_other_run(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []

    def interrupted(engine: SimulatedEngine) -> None:
        begun.append(engine)
        raise KeyboardInterrupt

    monkeypatch.setattr(SimulatedEngine, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        harness.sweep(*FEW, "seed=1,2", workers=1)
    assert len(begun) == 1


def test_a_capacity_is_found_and_its_runs_vanish_or_stay(tmp_path: Path) -> None:
    asked = ("metrics.slo.ttft_ms=500", "capacity.num_requests=100", "capacity.max_probes=6", "capacity.workers=1")
    found = harness.capacity(*ROOFLINE, *asked, trace=requests(100))
    low, high = found.interval
    assert low is not None and (high is None or low < high) and len(found.probes) <= 6
    assert found.folder.is_dir() and "CAPACITY" in found.report()
    found.save(tmp_path / "saved")
    assert (
        json.loads((tmp_path / "saved/capacity.json").read_text())["rows"] and (tmp_path / "saved/report.html").exists()
    )
    folder = found.folder
    del found
    assert not folder.exists()


@pytest.mark.long
def test_a_process_of_a_sweep_does_not_run_the_script_that_began_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from harness import sweep\nopen('begun', 'a').write('x')\n"
        "print(len(sweep('seed=1,2', 'trace.num_requests=10', 'cost=roofline', workers=2).runs))\n"
    )
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout, (tmp_path / "begun").read_text()) == ("2\n", "x"), done.stderr


def test_folders_that_hold_nothing_are_refused_and_damaged_ones_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="^compare: give runs"):
        harness.compare()
    with pytest.raises(TwinServeError, match="holds no result"):
        harness.compare(tmp_path)
    run = harness.run(*FEW)
    run.save(tmp_path / "a")
    (tmp_path / "a/requests.parquet").write_bytes(b"")
    assert list(harness.compare(run, tmp_path / "a").failed) == [str(tmp_path / "a")]
