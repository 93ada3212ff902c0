"""One process at a time writes to a result folder, whichever task it runs; a full disk costs no earlier result."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness import cli
from harness.results.stored import files, parquet
from harness.results.stored.files import read_results
from harness.results.stored.lock import FolderInUseError, locked
from simulator.table import Table
from tests.harness.builders import ROOT, config, execute_in

HOLD = """
import sys, time
from pathlib import Path
from harness.results.stored.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_folder_has_one_writer_and_is_free_again_after_its_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        (tmp_path / ".summary.1234.json").write_text("{")
        with pytest.raises(FolderInUseError, match="another run is writing to this folder"), locked(tmp_path):
            pass
        assert (tmp_path / ".summary.1234.json").exists()
        for arguments in ([f"hydra.run.dir={tmp_path}"], ["-m", f"hydra.sweep.dir={tmp_path}"]):
            monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
            assert cli.main() == 2
            error = f"error: {tmp_path}: another run is writing to this folder; choose another one\n"
            assert capsys.readouterr() == ("", error)
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", ".summary.1234.json"]
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with locked(tmp_path):
        assert not (tmp_path / ".summary.1234.json").exists(), "what the dead writer left is removed"
    with locked(tmp_path):
        pass


SETTINGS = ("trace.num_requests=20", "progress=false")


def test_a_disk_that_is_full_at_the_start_leaves_the_earlier_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute_in(tmp_path, config(*SETTINGS))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(self: Path, *arguments: object, **options: object) -> int:
        self.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left on device"):
        execute_in(tmp_path, config(*SETTINGS, "seed=1"))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("table", [files.REQUESTS, files.GAPS])
def test_a_disk_that_fills_up_leaves_nothing_that_looks_whole(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute_in(tmp_path, config(*SETTINGS))
    write_parquet = parquet.write_parquet

    def full(path: Path, rows: Table) -> None:
        if path.name.startswith(f".{Path(table).stem}."):
            path.write_bytes(b"PAR1")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write_parquet(path, rows)

    monkeypatch.setattr(parquet, "write_parquet", full)
    with pytest.raises(OSError, match="No space left on device"):
        execute_in(tmp_path, config(*SETTINGS, "seed=1"))
    assert not (tmp_path / "summary.json").exists() and not list(tmp_path.glob(".*.parquet"))
    monkeypatch.undo()
    execute_in(tmp_path, config(*SETTINGS, "seed=1"))
    assert read_results(tmp_path)[1]["completed"] == 20
