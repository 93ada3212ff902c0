"""`twinserve`, the console command, installed from a wheel: it runs anywhere, with the conf tree and the profiles."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.builders import ROOT

BUILD = """
import sys
from setuptools import build_meta
build_meta.build_wheel(sys.argv[1])
"""
COMMAND = "import sys; from harness.command import main; sys.argv[0] = 'twinserve'; sys.exit(main())"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel holds, built from a copy of the sources."""
    pytest.importorskip("setuptools")
    source, wheel, target = (tmp_path_factory.mktemp(name) for name in ("source", "wheel", "target"))
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("harness", "engine", "kernels", "simulator", "conf"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=left_out)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    subprocess.run([sys.executable, "-c", BUILD, str(wheel)], cwd=source, check=True, capture_output=True)
    (path,) = wheel.glob("*.whl")
    shutil.unpack_archive(path, target, "zip")
    (target / "torch.py").write_text("raise RuntimeError('torch was imported')")
    return target


def twinserve(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-c", COMMAND, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_the_wheel_names_the_command_and_holds_all_data(installed: Path) -> None:
    (points,) = installed.glob("*.dist-info/entry_points.txt")
    assert "twinserve = harness.command:main" in points.read_text()
    for name, place in (("conf", "harness/conf"), ("simulator/profiles", "simulator/profiles")):
        files = {path.relative_to(ROOT / name) for path in (ROOT / name).rglob("*.*") if path.is_file()}
        assert files and all((installed / place / path).is_file() for path in files)


@pytest.mark.long
def test_a_sweep_from_any_folder_is_quiet_when_piped(installed: Path, tmp_path: Path) -> None:
    """No torch, no bars, no control characters and no colours; a line per job, folders named by what varies."""
    done = twinserve(
        installed, tmp_path, "-m", "-v", "block_size=16,64", "trace.num_requests=20", "plots=false", "hydra.sweep.dir=m"
    )
    assert done.returncode == 0
    assert not CONTROL.search(done.stdout + done.stderr)
    lines = [line.split()[:2] for line in done.stdout.splitlines() if re.match(r"\d/2 ", line)]
    assert lines == [["1/2", "block_size=16"], ["2/2", "block_size=64"]]
    assert done.stdout.count("SIMULATED ") == 2 and "KV pool: " in done.stdout  # -v shows the runs, too
    assert {path.name for path in (tmp_path / "m").iterdir() if path.is_dir()} == {"block_size=16", "block_size=64"}
    assert "measured kernels" in (tmp_path / "m/block_size=16/summary.json").read_text()  # from the profiles
