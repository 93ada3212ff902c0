"""Mutated records of measured runs: every reader gives a valid run or one line."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from harness.errors import TwinServeError
from harness.measured import MeasuredRun, load_measured
from harness.measured.measured_run import MAX_SPAN_S
from simulator.quantities import MAX_TOKENS
from tests.harness.measured.builders import (
    FILES,
    NAMES,
    TABLE,
    bench,
    made_up,
    pretend_measured,
    write_distserve,
    write_llmservingsim,
)
from tests.mutations import mutants

MAX_SECONDS = 10
FORMS = {".json": "json", ".jsonl": "json_lines", ".csv": "csv", ".yaml": "yaml", ".exp": "json", ".parquet": "bytes"}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A valid record of each kind."""
    folder = tmp_path_factory.mktemp("records")
    write_llmservingsim(folder / "llmservingsim", kv_cache_pct=50.0)
    write_distserve(folder / "m.exp", made_up())
    bench(folder / "b.json")
    for name in ("guidellm.json", "aiperf.jsonl"):
        shutil.copy(FILES / name, folder)
    (folder / "log.csv").write_text(TABLE)
    pretend_measured(folder / "run", "trace.num_requests=8")
    return folder


TARGETS = {
    "llmservingsim": [
        "llmservingsim/requests.jsonl", "llmservingsim/workload.jsonl", "llmservingsim/timeseries.csv",
        "llmservingsim/meta.json",
    ],
    "distserve": ["m.exp"],
    "vllm_bench": ["b.json"],
    "guidellm": ["guidellm.json"],
    "aiperf": ["aiperf.jsonl"],
    "csv": ["log.csv"],
    "run": ["run/config.yaml", "run/summary.json", "run/requests.parquet", "run/steps.parquet", "run/gaps.parquet"],
}  # fmt: skip


def check_run(run: MeasuredRun) -> None:
    """Raises AssertionError unless the run is what `MeasuredRun` promises."""
    table = run.requests
    assert len(table) == len(run.trace.table) > 0
    for name in ("num_prompt_tokens", "num_output_tokens", "num_requested_tokens"):
        assert table[name].between(1, MAX_TOKENS).all()
    times = table[["arrival_time", "first_token_time", "finish_time"]].to_numpy()
    assert np.isfinite(times).all() and times.min() == 0 and times.max() <= MAX_SPAN_S
    assert (np.diff(times[:, 0]) >= 0).all() and (np.diff(times, axis=1) >= 0).all()
    for name in ("ttft", "e2el"):
        assert (table[name] >= 0).all()
    assert (table["tpot"].dropna() >= 0).all() and not np.isinf(table["tpot"]).any()
    series = run.series.to_numpy(dtype=np.float64)
    assert not np.isinf(series).any() and (np.diff(run.series["time"].to_numpy()) >= 0).all()
    assert len(run.data_sha256()) == len(run.requests_sha256()) == 64


def mutated(records: Path, kind: str, count: int) -> Iterator[str]:
    """Changes one file of the record at a time, and names the file and the mutant."""
    for target in TARGETS[kind]:
        path = records / target
        valid = path.read_bytes()
        for number, data in enumerate(mutants(valid, FORMS[path.suffix], count)):
            path.write_bytes(data)
            yield f"{target}, mutant {number}: {data[:300]!r}"
        path.write_bytes(valid)


def run_cases(records: Path, kind: str, count: int) -> int:
    """Reads `count` mutants of each file; returns how many were read."""
    place = kind if kind in ("llmservingsim", "run") else TARGETS[kind][0]
    workload = str(records / "llmservingsim" / "workload.jsonl") if kind == "llmservingsim" else None
    num_read = 0
    for case in mutated(records, kind, count):
        started = time.perf_counter()
        try:
            run = load_measured(f"{kind}:{records / place}", workload, NAMES if kind == "csv" else {})
        except TwinServeError as error:
            assert str(error).isprintable() and len(str(error)) < 2000, (case, str(error))
        except Exception as error:
            raise AssertionError(case) from error
        else:
            try:
                check_run(run)
            except AssertionError as error:
                raise AssertionError(case) from error
            num_read += 1
        assert time.perf_counter() - started < MAX_SECONDS, case
    return num_read


@pytest.mark.parametrize("kind", TARGETS)
def test_mutated_records(records: Path, tmp_path: Path, kind: str) -> None:
    shutil.copytree(records, tmp_path / "records")
    assert run_cases(tmp_path / "records", kind, 6) > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", TARGETS)
def test_thousands_of_mutated_records(records: Path, tmp_path: Path, kind: str) -> None:
    shutil.copytree(records, tmp_path / "records")
    assert run_cases(tmp_path / "records", kind, 600) > 50
