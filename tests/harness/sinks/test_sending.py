"""What is sent of runs and sweeps, with a tool that keeps it in memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from pydantic import ValidationError

from harness.config.schema.base import ConfigModel
from harness.config.schema.endpoint import OpenAIEngine
from harness.config.schema.sinks import MlflowSink, OtelSink, SinksConfig, WandbSink
from harness.config.schema.tasks.needs import Task, check_sinks
from harness.errors import ConfigError, TwinServeError
from harness.results.stored.files import FAILED, SENT, SUMMARY, read_summary
from harness.sinks import sending
from harness.sinks.entry import Entry, read_entry
from harness.sinks.sending import send_run, send_sweep, sent_after
from tests.harness.builders import config, execute_in

RUN = ("trace.num_requests=20", "progress=false")
MLFLOW = SinksConfig(mlflow=MlflowSink())


class Kept:
    """Keeps entries in place of MLflow."""

    def __init__(self) -> None:
        self.place = "memory"
        self.entries: list[tuple[str, Entry, str | None]] = []
        self.error: Exception | None = None

    def send(self, entry: Entry, *, parent: str | None = None, run_id: str | None = None) -> str:
        if self.error:
            raise self.error
        run_id = run_id or str(len(self.entries))
        self.entries.append((run_id, entry, parent))
        return run_id


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    kept = Kept()
    monkeypatch.setattr(sending, "MlflowTracker", lambda settings: kept)
    monkeypatch.setattr(sending, "check_package", lambda *_: None)
    return kept


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sinks") / "a run"
    execute_in(folder, config(*RUN, "sinks=mlflow", "sinks.mlflow.tags={team: x}"))
    return folder


def test_a_run_is_sent_with_its_configuration_its_numbers_and_its_files(done: Path) -> None:
    entry, summary = read_entry(done), read_summary(done)
    assert (entry.name, entry.status) == ("a run", "finished")
    assert entry.params["arrival.rate"] == yaml.safe_load((done / "config.yaml").read_text())["arrival"]["rate"]
    assert not [key for key in entry.params if key.startswith("sinks")]
    assert entry.metrics == {
        key: float(value) for key, value in summary.items() if isinstance(value, int | float) and abs(value) < 1e300
    }
    assert {"requests.parquet", "steps.parquet", SUMMARY} <= {path.name for path in entry.files}
    assert entry.tags["simulated"] == "true" and entry.started_ms <= entry.ended_ms


def test_what_was_sent_is_not_sent_again_unless_elsewhere(kept: Kept, done: Path) -> None:
    for _ in range(2):
        send_run(MLFLOW, done)
    assert len(kept.entries) == 1
    kept.place = "another"
    send_run(MLFLOW, done)
    assert len(kept.entries) == 2
    assert SENT not in {path.name for path in kept.entries[1][1].files}


@pytest.mark.parametrize(
    ("error", "status"), [(TwinServeError("no memory"), "failed"), (KeyboardInterrupt(), "killed")]
)
def test_a_run_that_fails_is_sent_as_such(error: BaseException, status: str, kept: Kept, tmp_path: Path) -> None:
    with pytest.raises(type(error)), sent_after(MLFLOW, tmp_path):
        (tmp_path / "config.yaml").write_text("seed: 1")
        raise error
    (_, entry, _), *others = kept.entries
    assert not others and entry.status == status and entry.params == {"seed": 1}
    assert str(error) in entry.note


def test_an_error_before_the_run_began_sends_nothing_of_an_earlier_one(kept: Kept, done: Path) -> None:
    with pytest.raises(ConfigError), sent_after(MLFLOW, done):
        raise ConfigError("wrong")
    assert not kept.entries


def test_a_tool_that_does_not_answer_is_one_line(
    kept: Kept, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept.error = OSError("no route\nto host")
    (tmp_path / "config.yaml").write_text("seed: 1")
    with pytest.raises(TwinServeError, match=r"^sinks.mlflow: OSError: no route to host; the results are in "):
        send_run(MLFLOW, tmp_path)
    with pytest.raises(ConfigError, match="^first$"), sent_after(MLFLOW, tmp_path):
        (tmp_path / "config.yaml").write_text("seed: 2")
        raise ConfigError("first")
    assert "no route" in capsys.readouterr().err


def test_the_runs_of_a_sweep_are_children(kept: Kept, tmp_path: Path) -> None:
    jobs = [tmp_path / name for name in ("a", "b", "c")]
    for job in jobs:
        job.mkdir()
        (job / SUMMARY).write_text(json.dumps({"complete": True, "p99_ttft_ms": 1}))
    (jobs[2] / FAILED).write_text(json.dumps({"error": "out of memory"}))
    send_sweep(MLFLOW, tmp_path, jobs[:2])
    send_sweep(MLFLOW, tmp_path, jobs)  # the sweep goes on
    sent = [(run_id, entry.name, entry.status, parent) for run_id, entry, parent in kept.entries]
    assert sent == [
        ("0", tmp_path.name, "finished", None), ("1", "a", "finished", "0"), ("2", "b", "finished", "0"),
        ("0", tmp_path.name, "failed", None), ("4", "c", "failed", "0"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sinks", "package"),
    [
        (MLFLOW, "mlflow"),
        (SinksConfig(wandb=WandbSink()), "wandb"),
        (SinksConfig.model_validate({"otel": {}}), "opentelemetry.sdk"),
    ],
)
def test_a_tool_that_is_not_installed_is_told_before_the_run(
    sinks: SinksConfig, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr("importlib.util.find_spec", _raising)
    (name,) = sinks.names
    with (
        pytest.raises(ConfigError, match=rf"^sinks={name}: {package} is not installed \(pip .*\[{name}\]'\)$"),
        sent_after(sinks, tmp_path),
    ):
        pytest.fail("the run began")


def _raising(name: str) -> None:
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize(
    ("model", "keys", "message"),
    [
        (MlflowSink, {"tracking_uri": "http://me:secret@host"}, "MLFLOW_TRACKING_URI"),
        (OtelSink, {"endpoint": "http://me:secret@host"}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        (OtelSink, {"start": "2026-01-31"}, "date with time and zone"),
        (OtelSink, {"exporter": "file", "endpoint": "http://host"}, "exporter=file sends to none"),
        (OpenAIEngine, {"endpoint": "http://host", "body": {"extra": {"api_key": ":secret"}}}, "body.extra.api_key"),
    ],
)
def test_secrets_are_refused(model: type[ConfigModel], keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message) as error:
        model.model_validate(keys)
    assert ":secret" not in str(error.value)


def test_tasks_that_leave_nothing_to_send_are_refused() -> None:
    for task, tools, message in (("report", ("wandb", "otel"), "sinks=wandb"), ("capacity", ("otel",), "sinks=otel")):
        with pytest.raises(ValueError, match=f"^{message}: task={task}"):
            check_sinks(cast(Task, task), SinksConfig.model_validate(dict.fromkeys(tools, {})))
