"""Runs that need more memory than there is: refused before they start, or kept up to where memory ended."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from harness.engines import host_memory
from harness.errors import ConfigError
from harness.results.stored import environment
from harness.results.stored.files import read_results
from harness.terminal import run
from tests.harness.builders import ROOT, config


@pytest.mark.parametrize("overrides", [["trace=synthetic"], ["trace=shared_prefix"], ["trace=sharegpt"]])
def test_more_requests_than_memory_are_refused_before_anything_is_drawn(
    overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_memory, "available_memory_bytes", lambda: 1 << 30)
    with pytest.raises(ConfigError, match="100,000,000 requests need at least 42.8 GiB of memory and 1.0 GiB are"):
        run(config("trace.num_requests=100000000", *overrides), tmp_path)


def test_a_file_with_more_output_than_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_time,num_prompt_tokens,num_output_tokens\n" + "0,5,10000\n" * 300)
    monkeypatch.setattr(host_memory, "available_memory_bytes", lambda: 3_000_000)
    with pytest.raises(ConfigError, match="trace: 300 requests need at least"):
        run(config("trace=csv", f"trace.path={trace}", "arrival=trace", "max_num_seqs=256"), tmp_path)
    monkeypatch.setattr(host_memory, "available_memory_bytes", lambda: 4_000_000)
    host_memory.check_memory(300, 3_000_000, 256)


def test_a_pool_of_more_blocks_than_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = ["model=tiny", "trace.num_requests=3", "plots=false", "progress=false"]
    monkeypatch.setattr(host_memory, "available_memory_bytes", lambda: 1 << 30)
    for blocks in (["num_blocks=20000000"], ["device=h200", "block_size=1"]):
        with pytest.raises(ConfigError, match="^num_blocks: to simulate .* GiB of memory and 1.0 GiB are"):
            run(config(*small, *blocks), tmp_path)
    assert run(config(*small, "num_blocks=1000"), tmp_path)["completed"] == 3


def test_the_tightest_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = environment.available_memory_bytes()
    assert free is not None and free > 0
    (tmp_path / "own").mkdir()
    monkeypatch.setattr(environment, "_memory_groups", lambda: [tmp_path / "own", tmp_path])
    for folder, limit, used in (("own", "max", "5"), (".", "1000", "300")):
        (tmp_path / folder / "memory.max").write_text(f"{limit}\n")
        (tmp_path / folder / "memory.current").write_text(f"{used}\n")
    assert environment.available_memory_bytes() == 700
    (tmp_path / "own" / "memory.max").unlink()
    (tmp_path / "own" / "memory.limit_in_bytes").write_text("450\n")
    (tmp_path / "own" / "memory.usage_in_bytes").write_text("500\n")
    assert environment.available_memory_bytes() == 0


def test_the_limit_of_the_process_counts(tmp_path: Path) -> None:
    limit = 4 << 30

    def set_limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    code = "from harness.results.stored.environment import available_memory_bytes; print(available_memory_bytes())"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, preexec_fn=set_limit)
    assert 0 < int(done.stdout) < limit


@pytest.mark.slow
def test_a_run_that_runs_out_of_memory_writes_what_it_has(tmp_path: Path) -> None:
    limit = 660 << 20
    command = [
        sys.executable, "run.py", "trace.num_requests=100000", "plots=false", f"hydra.run.dir={tmp_path}",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: out of memory; what was recorded until then is in ")
    result, summary = read_results(tmp_path)
    assert (summary["complete"], summary["ended_early"]) == (False, "out of memory")
    assert 0 < summary["completed"] < len(result.requests) == 100_000
