"""MLflow and Weights & Biases with stores of their own on this machine."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.config.schema.sinks import MlflowSink, SinksConfig, WandbSink
from harness.results.stored.files import FAILED
from harness.sinks.entry import read_entry
from harness.sinks.sending import send_sweep
from tests.harness.builders import config, execute_in

RUN = ("trace.num_requests=20", "progress=false")
_BLOCK = 32_768


def _real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sinks: SinksConfig) -> tuple[Path, Path]:
    """A sweep of a complete and a failed run that was sent, with a key in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-marker")
    whole, job, bad = tmp_path / "sweep", tmp_path / "sweep" / "a=1", tmp_path / "sweep" / "a=2"
    execute_in(job, config(*RUN))
    bad.mkdir()
    (bad / FAILED).write_text(json.dumps({"error": "out of memory"}))
    send_sweep(sinks, whole, [job, bad])
    return job, bad


def _holds_no_key(folder: Path) -> bool:
    return not any(b"sk-marker" in path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.long
def test_mlflow_keeps_a_sweep_as_a_run_with_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # its database takes 10 s to make
    uri = (tmp_path / "mlruns").as_uri()
    job, _ = _real(tmp_path, monkeypatch, SinksConfig(mlflow=MlflowSink(tracking_uri=uri, tags={"team": "x"})))
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("twinserve")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert {name: run.info.status for name, run in runs.items()} == {
        "sweep": "FAILED", "a=1": "FINISHED", "a=2": "FAILED"
    }  # fmt: skip
    parent, child, entry = runs["sweep"].info.run_id, runs["a=1"], read_entry(job)
    assert child.data.tags["mlflow.parentRunId"] == parent and child.data.tags["team"] == "x"
    assert child.data.params["arrival.rate"] == str(entry.params["arrival.rate"])
    assert child.data.params.keys() == entry.params.keys()
    assert child.data.metrics == entry.metrics
    assert child.info.start_time == entry.started_ms and child.info.end_time == entry.ended_ms
    artifacts = {item.path for item in client.list_artifacts(child.info.run_id)}
    assert artifacts == {path.name for path in entry.files}
    assert _holds_no_key(tmp_path)


@pytest.mark.long
def test_wandb_keeps_a_sweep_as_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB__SERVICE_WAIT", "300")  # on a machine with other work its process starts late
    sinks = SinksConfig(wandb=WandbSink(mode="offline", tags=("x",)))
    job, bad = _real(tmp_path, monkeypatch, sinks)
    read = {path: _wandb_record(path) for path in (job, bad, tmp_path / "sweep")}
    run, config_of, summary, code = read[job]
    assert (run.run_group, run.job_type, run.display_name, list(run.tags)) == ("sweep", "run", "a=1", ["x"])
    entry = read_entry(job)
    assert {key: config_of[key] for key in entry.params} == entry.params
    assert {key: summary[key] for key in entry.metrics} == entry.metrics
    assert (code, read[bad][3], read[tmp_path / "sweep"][0].job_type) == (0, 1, "sweep")
    assert _holds_no_key(tmp_path)


def _wandb_record(folder: Path) -> tuple[Any, dict[str, Any], dict[str, Any], int]:
    """What a run that is to be synchronised holds: the run, its configuration, its summary and its exit code."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    records: list[Record] = []
    until = time.monotonic() + 30  # its process writes after the run, later on a machine with other work
    while not any(each.HasField("exit") for each in records) and time.monotonic() < until:
        records = [Record.FromString(each) for each in _leveldb_records(path.read_bytes())]
    run = next(each.run for each in records if each.HasField("run"))
    summaries = [each.summary for each in records if each.HasField("summary")]
    code = next(each.exit.exit_code for each in records if each.HasField("exit"))
    return run, _updates([run.config]), _updates(summaries), code


def _updates(items: list[Any]) -> dict[str, Any]:
    return {
        each.key or ".".join(each.nested_key): json.loads(each.value_json) for item in items for each in item.update
    }


def _leveldb_records(data: bytes) -> Iterator[bytes]:
    """Records of the log format of LevelDB, after the seven bytes that W&B writes first."""
    place, record = 7, b""
    while place + 7 <= len(data):
        if (left := _BLOCK - place % _BLOCK) < 7:
            place += left
            continue
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or its last part
            yield record
            record = b""
