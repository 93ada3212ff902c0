"""docs/sweeps_on_machines.md: its commands give what the default launcher gives, where the launcher is installed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import harness
from tests.docs.pages import ROOT, commands

COMMANDS = {
    word.partition("=")[2]: arguments
    for arguments in commands("sweeps_on_machines.md")
    for word in arguments
    if word.startswith("hydra/launcher=")
}
ON_A_CLUSTER = "submitit_slurm"
HERE = sorted(COMMANDS.keys() - {ON_A_CLUSTER})


def installed(launcher: str) -> bool:
    plugin = f"hydra_{launcher.partition('_')[0]}_launcher"
    return bool(importlib.util.find_spec("hydra_plugins") and importlib.util.find_spec(f"hydra_plugins.{plugin}"))


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT), *([path] if (path := os.environ.get("PYTHONPATH")) else [])]
    return subprocess.run(
        [sys.executable, str(ROOT / "run.py"), *arguments, "plots=false", "progress=false"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_the_page_has_a_command_for_each_launcher() -> None:
    assert COMMANDS.keys() == {"joblib", "submitit_local", "ray", ON_A_CLUSTER}


@pytest.mark.slow
@pytest.mark.parametrize("launcher", HERE)
def test_a_launcher_gives_what_the_default_gives(tmp_path: Path, launcher: str) -> None:
    if not installed(launcher):
        pytest.skip(f"no launcher {launcher}")
    arguments = COMMANDS[launcher][1:]
    ended = run(tmp_path, *arguments)
    assert ended.returncode == 0, ended.stderr
    (folder,) = (tmp_path / "multirun").iterdir()
    plain = harness.sweep(*(each for each in arguments if "hydra" not in each and each != "-m"), workers=1).runs
    assert {path.parent.name for path in folder.glob("*/summary.json")} == plain.keys() and len(plain) == 2
    assert (folder / "comparison.csv").exists()
    for job, ran in plain.items():
        launched = pd.read_parquet(folder / job / "requests.parquet").drop(columns="error")
        pd.testing.assert_frame_equal(launched, ran.requests.drop(columns="error"))


@pytest.mark.long
def test_without_slurm_there_is_one_line(tmp_path: Path) -> None:
    if not installed("submitit_slurm"):
        pytest.skip("no launcher submitit_slurm")
    ended = run(tmp_path, "-m", "max_num_seqs=8,16", "trace.num_requests=5", "hydra/launcher=submitit_slurm")
    assert ended.returncode == 2
    assert ended.stderr.strip().splitlines()[-1].startswith('error: Could not detect "srun"')
