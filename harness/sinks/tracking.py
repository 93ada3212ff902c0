"""Runs of MLflow and of Weights & Biases, from entries. Both tools are imported on the first use."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

from harness.config.schema.sinks import MlflowSink, WandbSink
from harness.sinks.entry import Entry, Status

_BATCH = 100  # parameters, or metrics, of one call: what MLflow takes
_LONGEST = 6000  # characters of a parameter in MLflow
_MLFLOW_STATUS: Mapping[Status, str] = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}


class Tracker(Protocol):
    """A tool that keeps runs."""

    @property
    def place(self) -> str:
        """Where runs are kept; a run that is there already is not sent again."""

    def send(self, entry: Entry, *, parent: str | None = None, run_id: str | None = None) -> str:
        """Send a run and return its id.

        Args:
            parent: id of the sweep that the run is of.
            run_id: of the run, where an earlier part of it was sent.
        """


class MlflowTracker:
    """See `MlflowSink`. A sweep is a parent run."""

    def __init__(self, settings: MlflowSink) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # to its makers, of which nobody here was asked
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # its own 7 take minutes where no server answers
        import mlflow  # late and heavy

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self._settings = settings
        self._entities = mlflow.entities
        self._client = mlflow.MlflowClient(tracking_uri=settings.tracking_uri)
        self.place = f"{settings.tracking_uri or mlflow.get_tracking_uri()}#{settings.experiment_name}"

    def send(self, entry: Entry, *, parent: str | None = None, run_id: str | None = None) -> str:
        run_id = run_id or self._begun(entry, parent)
        params = [self._entities.Param(_allowed(key), _cut(value)) for key, value in entry.params.items()]
        for batch in _batches(params):
            self._client.log_batch(run_id, params=batch)
        metrics = [
            self._entities.Metric(_allowed(key), value, entry.ended_ms, 0) for key, value in entry.metrics.items()
        ]
        for batch in _batches(metrics):
            self._client.log_batch(run_id, metrics=batch)
        for path in entry.files if self._settings.artifacts else ():
            self._client.log_artifact(run_id, str(path))
        self._client.set_terminated(run_id, _MLFLOW_STATUS[entry.status], entry.ended_ms)
        return run_id

    def _begun(self, entry: Entry, parent: str | None) -> str:
        """A run that has begun, with its tags; those with a dot are MLflow's own."""
        tags = {
            **entry.tags,
            **self._settings.tags,
            "mlflow.source.name": "twinserve",
            "mlflow.source.git.commit": entry.tags.get("git_commit"),
            "mlflow.note.content": entry.note,
            "mlflow.parentRunId": parent,
        }
        given = {key: value for key, value in tags.items() if value}
        name = entry.name if parent else self._settings.run_name or entry.name
        experiment = self._experiment()
        run = self._client.create_run(experiment, start_time=entry.started_ms, tags=given, run_name=name)
        return str(run.info.run_id)

    def _experiment(self) -> str:
        name = self._settings.experiment_name
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self._client.create_experiment(name))


class WandbTracker:
    """See `WandbSink`. A sweep is a group, and a run of it of the type `sweep`."""

    def __init__(self, settings: WandbSink) -> None:
        import wandb  # late and heavy

        self._wandb = wandb
        self._settings = settings
        self.place = f"{settings.entity or ''}/{settings.project} {settings.mode}"

    def send(self, entry: Entry, *, parent: str | None = None, run_id: str | None = None) -> str:
        settings, is_sweep = self._settings, entry.tags.get("task") == "sweep"
        run = self._wandb.init(
            id=run_id, resume="allow" if run_id else None, dir=str(entry.folder), mode=settings.mode,
            project=settings.project, entity=settings.entity, tags=settings.tags or None, notes=entry.note or None,
            name=entry.name if parent or not settings.name else settings.name,
            group=settings.group or (entry.name if is_sweep else entry.folder.parent.name if parent else None),
            job_type="sweep" if is_sweep else "run", config={**entry.params, **entry.tags}, reinit="finish_previous",
            # what W&B collects by itself is of this process, which measures nothing any more
            settings=self._wandb.Settings(
                console="off", silent=True, disable_git=True, save_code=False, x_disable_stats=True, x_disable_meta=True
            ),
        )  # fmt: skip
        run.summary.update(dict(entry.metrics))
        if settings.artifacts and entry.files:
            artifact = self._wandb.Artifact(f"results-{run.id}", type="results")
            for path in entry.files:
                artifact.add_file(str(path))
            run.log_artifact(artifact)
        run.finish(exit_code=0 if entry.status == "finished" else 1)
        return str(run.id)


def _batches(items: Sequence[Any]) -> Iterator[list[Any]]:
    left = iter(items)
    while batch := list(islice(left, _BATCH)):
        yield batch


def _allowed(key: str) -> str:
    """`key` without the characters that MLflow refuses in names."""
    return re.sub(r"[^\w\-. :/]", "_", key, flags=re.ASCII)[:250]


def _cut(value: Any) -> str:
    """A value as text; the whole of a long one is in config.yaml."""
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
