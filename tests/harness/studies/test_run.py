"""Whole runs from configuration to result folder, bad input and interrupts included."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from engine.core.plan import StepOutcome
from harness.engines import simulated
from harness.errors import ConfigError, EngineError, TwinServeError
from harness.jobs import execute
from harness.record.plan_log import PLAN_COLUMNS
from harness.record.recorder import Recorder
from harness.record.rows import Rows
from harness.results.stored.files import read_results
from harness.terminal import run
from tests.compiled import Overlaid
from tests.harness.builders import ROOT, TRACES, config


def write_csv(path: Path, rows: list[str]) -> str:
    path.write_text("\n".join(["arrival_time,num_prompt_tokens,num_output_tokens", *rows]) + "\n")
    return str(path)


def test_equal_seeds_give_equal_results_and_others_do_not(tmp_path: Path) -> None:
    small = "trace.num_requests=200"
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run(config(small, f"seed={seed}"), tmp_path / name)
    results = {name: read_results(tmp_path / name)[0] for name in "abc"}
    pd.testing.assert_frame_equal(results["a"].requests, results["b"].requests, check_exact=True)
    assert not np.array_equal(results["a"].requests["ttft"], results["c"].requests["ttft"])


@pytest.mark.parametrize(
    "overrides",
    [
        ["arrival=all_at_once", "scheduler=prefill_first"],
        ["arrival=closed_loop", "arrival.concurrency=7", "engine.compress=false"],
        ["arrival=gamma", "arrival.burstiness=0.3", "trace=synthetic"],
        ["arrival=constant", "trace=shared_prefix"],
        ["trace=sharegpt_multiturn", "arrival=sessions"],
        ["scheduler.enable_prefix_caching=false"],
        ["model=qwen3-30b-a3b", "device=b200", "tensor_parallel_size=2"],
        ["model=tiny", "device=laptop-cpu"],
        ["num_blocks=400", "max_num_seqs=64"],
    ],
    ids="+".join,
)
@pytest.mark.sample(5)
def test_every_kind_of_run_finishes_all_requests(overrides: list[str], tmp_path: Path) -> None:
    summary = run(config("trace.num_requests=80", *overrides), tmp_path)
    assert summary["complete"] and summary["completed"] + summary["rejected"] == 80
    assert summary["completed"] > 75
    result, _ = read_results(tmp_path)
    done = result.requests[result.requests["status"] == "finished"]
    assert (done["arrival_time"] <= done["first_scheduled_time"]).all()
    assert (done["first_scheduled_time"] < done["first_token_time"]).all()
    assert (done["first_token_time"] <= done["finish_time"]).all()


def test_a_starved_pool_preempts_and_a_shared_prefix_hits(tmp_path: Path) -> None:
    starved = run(config("trace.num_requests=150", "num_blocks=400", "arrival=all_at_once"), tmp_path / "a")
    assert starved["preemptions"] > 0 and starved["recomputed_tokens"] > 0
    shared = run(config("trace=shared_prefix"), tmp_path / "b")
    assert shared["prefix_cache_hit_rate"] > 0.5


def test_bad_rows_and_requests_that_cannot_run_leave_the_others_alone(tmp_path: Path) -> None:
    rows = ["0,100,10", "1,-5,10", "2,100,0", "3,x,10", "2.5,100,10", "4,39000,10", "1,100,10", "5,100,10"]
    path = write_csv(tmp_path / "trace.csv", rows)
    trace = ["trace=csv", f"trace.path={path}", "arrival=trace"]
    with pytest.raises(TwinServeError, match="3 of 8 rows cannot be used"):
        run(config(*trace), tmp_path / "out")
    summary = run(config(*trace, "trace.on_bad_row=drop", "num_blocks=100"), tmp_path / "out")
    assert sum(summary["bad_rows"].values()) == 3
    assert (summary["completed"], summary["rejected"]) == (4, 1)
    assert "1 of 5 rows were out of order in the file; all are sorted by time" in summary["notes"]
    requests = read_results(tmp_path / "out")[0].requests
    assert "exceed the limit of 1600" in requests.loc[requests["status"] == "rejected", "error"].item()
    with pytest.raises(TwinServeError, match="line 3"):
        run(config("trace=csv", f"trace.path={path}", "trace.on_bad_row=error", "arrival=trace"), tmp_path / "out2")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model=llama-3.1-70b"], "does not fit on NVIDIA H100"),
        (["trace=csv", "trace.path=nowhere.csv"], "nowhere.csv"),
        (["arrival=trace"], "arrival"),
        (["arrival=sessions"], "session"),
        (["cost=profiled", "cost.profile=x"], "cost.profile"),
        (["device.flops.bf16=1e8"], "check the units of the device's rates"),
    ],
)
def test_what_cannot_run_ends_in_one_line(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(TwinServeError, match=message) as caught:
        run(config(*overrides), tmp_path)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ConfigError) or "nowhere" in message


def test_a_report_into_the_folder_of_a_run_leaves_the_run_alone(tmp_path: Path) -> None:
    run(config("trace.num_requests=20"), tmp_path)
    execute(config("task=report", f"results=[{tmp_path}]"), tmp_path)
    assert read_results(tmp_path)[1]["completed"] == 20
    assert (tmp_path / "comparison.csv").exists()


def test_a_sequence_cut_at_the_model_limit_is_reported(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "trace.csv", ["0,100,500", "1,100,20"])
    summary = run(config("trace=csv", f"trace.path={path}", "arrival=trace", "max_model_len=300"), tmp_path / "out")
    assert (summary["completed"], summary["truncated"], summary["total_output_tokens"]) == (2, 1, 220)


@pytest.mark.skipif(not TRACES.exists(), reason=f"needs the public traces at {TRACES}")
@pytest.mark.parametrize(
    ("overrides", "num_requests"),
    [
        ([f"trace=azure trace.path={TRACES}/azure2023/AzureLLMInferenceTrace_conv.csv"], 500),
        ([f"trace=mooncake trace.path={TRACES}/mooncake/conversation_trace.jsonl"], 500),
        ([f"trace=burstgpt trace.path={TRACES}/burstgpt/BurstGPT_1_first400rows.csv"], 383),
    ],
)
@pytest.mark.long
def test_public_traces_replay_with_their_own_times(overrides: list[str], num_requests: int, tmp_path: Path) -> None:
    words = overrides[0].split()
    summary = run(config(*words, "trace.limit=500", "arrival=trace", "max_num_seqs=512"), tmp_path)
    assert summary["num_prompts"] == num_requests and summary["complete"]


@pytest.mark.long
def test_an_interrupt_leaves_what_was_recorded_marked_incomplete(tmp_path: Path) -> None:
    num_requests = 500_000
    command = [
        sys.executable, "run.py", f"trace.num_requests={num_requests}", "plots=false", "verbose=true",
        f"hydra.run.dir={tmp_path}",
    ]  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        while "KV pool" not in process.stdout.readline():
            assert process.poll() is None, "the run ended before it began"
        time.sleep(0.5)
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["complete"] is False
    requests = read_results(tmp_path)[0].requests
    assert len(requests) == num_requests
    assert 0 < (requests["status"] == "finished").sum() == summary["completed"] < num_requests


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (EngineError("rank 1 died"), "rank 1 died"),
        (MemoryError(), "out of memory"),
        (KeyboardInterrupt(), "interrupted"),
        (IndexError("a\ndefect"), "IndexError: a defect"),
    ],
)
def test_a_run_that_cannot_go_on_keeps_what_was_recorded(
    failure: BaseException, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(**options: bool) -> Any:
        recorder = Recorder(**options)

        def on_commit(outcome: StepOutcome) -> None:
            if recorder.num_done >= 50:
                raise failure
            recorder.on_commit(outcome)

        return Overlaid(recorder, on_commit=on_commit)

    monkeypatch.setattr(simulated, "Recorder", failing)
    expected = EngineError if isinstance(failure, EngineError | MemoryError) else type(failure)
    with pytest.raises(expected, match=f"^{reason}; what was recorded" if expected is EngineError else None):
        run(config("trace.num_requests=200"), tmp_path)
    result, summary = read_results(tmp_path)
    assert (summary["complete"], summary["ended_early"]) == (False, reason)
    assert 50 <= summary["completed"] == (result.requests["status"] == "finished").sum() < 200
    assert len(result.requests) == 200


OWN_ROWS = pytest.param("plans", marks=pytest.mark.interpreted("rows of its own inherit from `Rows`"))


@pytest.mark.parametrize("buffer", ["durations", "growth", "single_gaps", OWN_ROWS])
def test_a_step_that_was_recorded_by_half_is_left_out(
    buffer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each buffer of the recorder in turn finds no more memory."""

    class Full(array):
        left = 300

        def _take(self) -> None:
            self.left -= 1
            if self.left < 0:
                raise MemoryError

        def append(self, value: int) -> None:
            self._take()
            super().append(value)

        def extend(self, values: Iterable[int]) -> None:
            for value in values:
                self.append(value)

        def fromlist(self, values: list[int]) -> None:
            self._take()
            super().fromlist(values)

        def frombytes(self, data: Any) -> None:
            self._take()
            super().frombytes(data)

    class FullRows(Rows):
        left = 300

        def add(self, row: bytes) -> None:
            self.left -= 1
            if self.left < 0:
                raise MemoryError
            super().add(row)

    def make(**options: bool) -> Recorder:
        recorder = Recorder(**options)
        setattr(recorder._log, buffer, FullRows(len(PLAN_COLUMNS)) if buffer == "plans" else Full("q"))
        return recorder

    monkeypatch.setattr(simulated, "Recorder", make)
    with pytest.raises(EngineError, match="^out of memory; "):
        run(config("trace.num_requests=800", "arrival=all_at_once", "num_blocks=3000"), tmp_path)
    result, summary = read_results(tmp_path)
    assert not summary["complete"] and len(result.requests) == 800 and len(result.steps) > 0
    ends = result.steps["start_time"] + result.steps["duration"]
    assert (result.steps["start_time"].to_numpy()[1:] >= ends.to_numpy()[:-1] - 1e-9).all()
