"""An engine that fails in the middle of a run: what it had recorded is written, and the run ends in one line."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from engine.runner.cache.kv_cache import OutOfMemoryError  # noqa: E402
from engine.runner.executors.executor import LocalExecutor  # noqa: E402
from harness.engines import real  # noqa: E402
from harness.errors import EngineError  # noqa: E402
from harness.record.recorder import Recorder  # noqa: E402
from harness.results.stored.files import read_results  # noqa: E402
from harness.terminal import run  # noqa: E402
from tests.compiled import Overlaid  # noqa: E402
from tests.harness.builders import SMALLEST, config  # noqa: E402

NUM_REQUESTS = 30
SETTINGS = (
    *SMALLEST, "num_blocks=200", "engine.warm_up=false", "plots=false", "max_num_seqs=4", "arrival=all_at_once",
    "trace=synthetic", f"trace.num_requests={NUM_REQUESTS}",
    "trace/lengths@trace.prompt=constant", "trace/lengths@trace.output=constant", "trace.prompt.value=20",
    "trace.output.value=8",
)  # fmt: skip


def check_results(folder: Path, cause: str) -> None:
    """At least five of the requests have finished, and the others are not lost."""
    result, summary = read_results(folder)
    statuses = result.requests["status"].value_counts()
    assert summary["complete"] is False and cause in summary["ended_early"]
    assert 5 <= statuses["finished"] == summary["completed"] < NUM_REQUESTS
    assert statuses["finished"] + statuses["unfinished"] == NUM_REQUESTS
    assert len(result.steps) > 5
    assert result.requests["arrival_time"].notna().all(), "a request that had arrived has no arrival time"


@pytest.mark.parametrize(
    ("failure", "raised", "cause"),
    [
        (OutOfMemoryError("no block fits"), EngineError, "no block fits"),
        (
            torch.OutOfMemoryError("CUDA out of\n memory"),
            EngineError,
            "CUDA out of memory",
        ),
        (MemoryError(), EngineError, "MemoryError"),
        (KeyError("a defect"), KeyError, "a defect"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
@pytest.mark.sample(2)
def test_a_failing_step_keeps_what_was_recorded(
    failure: Exception, raised: type[Exception], cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorders: list[Recorder] = []
    execute = LocalExecutor.execute

    def remember(**options: bool) -> Recorder:
        recorders.append(Recorder(**options))
        return recorders[-1]

    def fail_after_five(self: LocalExecutor, inputs: object) -> object:
        if recorders[-1].num_done >= 5:
            raise failure
        return execute(self, inputs)  # type: ignore[arg-type]

    monkeypatch.setattr(real, "Recorder", remember)
    monkeypatch.setattr(LocalExecutor, "execute", fail_after_five)
    with pytest.raises(raised, match=cause) as caught:
        run(config(*SETTINGS), tmp_path)
    assert "\n" not in str(caught.value)
    check_results(tmp_path, cause)


def test_a_failing_warm_up_ends_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: LocalExecutor, inputs: object) -> object:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(LocalExecutor, "execute", fail)
    with pytest.raises(EngineError, match="engine=cpu: CUDA out of memory"):
        run(config(*SETTINGS, "engine.warm_up=true"), tmp_path)


@pytest.mark.usefixtures("forked_ranks")
def test_a_killed_worker_costs_no_finished_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def deadly(**options: bool) -> Any:
        recorder = Recorder(**options)

        def record_and_kill(report: Any) -> None:
            recorder.on_report(report)
            if recorder.num_done >= 5:
                for worker in multiprocessing.active_children()[:1]:
                    worker.kill()

        return Overlaid(recorder, on_report=record_and_kill)

    monkeypatch.setattr(real, "Recorder", deadly)
    with pytest.raises(EngineError, match="^engine=cpu: rank ") as caught:
        run(config(*SETTINGS, "tensor_parallel_size=2"), tmp_path)
    assert "\n" not in str(caught.value) and capfd.readouterr().err == ""
    check_results(tmp_path, "exit code -9")
