"""Which folder is sent to which tool, and when.

<folder>/sent.json   by tool: the id of the run there, and where that is. What was sent is not sent again to the same
                     place; a run that is repeated is, as `config.yaml` begins its folder anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.documents import DocumentError, read_json
from harness.config.schema.sinks import SinksConfig
from harness.engines.availability import check_package
from harness.errors import TwinServeError
from harness.results.stored.files import FAILED, SENT, write_whole
from harness.sinks.entry import CONFIG, Entry, read_entry, sweep_entry
from harness.sinks.tracking import MlflowTracker, Tracker, WandbTracker

_PACKAGES = {
    "mlflow": ("mlflow",),
    "wandb": ("wandb",),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
}


def check_sinks(sinks: SinksConfig) -> None:
    """Raises ConfigError where the package of a tool is not installed."""
    for name in sinks.names:
        for package in _PACKAGES[name]:
            check_package(f"sinks={name}", package, name)


@contextmanager
def sent_after(sinks: SinksConfig, folder: Path) -> Iterator[None]:
    """Send what the block leaves in `folder`, marked failed where the block raises.

    Raises:
        TwinServeError: a package is missing, or the results could not be sent. After an error of the block that is a
            line on stderr.
    """
    if not sinks.names:
        yield
        return
    check_sinks(sinks)
    before_ns = _begun_ns(folder)
    try:
        yield
    except BaseException as error:
        if _begun_ns(folder) != before_ns:  # what is there is of this run
            try:
                _print(send_run(sinks, folder, _one_line(error), is_killed=isinstance(error, KeyboardInterrupt)))
            except TwinServeError as other:
                print(other, file=sys.stderr, flush=True)
        raise
    _print(send_run(sinks, folder))


def send_run(sinks: SinksConfig, folder: Path, failure: str | None = None, *, is_killed: bool = False) -> list[str]:
    """Send a folder of results; returns a line on each run that a tool has now.

    Args:
        failure, is_killed: as of `read_entry`.

    Raises:
        TwinServeError: a tool did not take it.
    """
    entry = read_entry(folder, failure, is_killed=is_killed)
    lines = [f"{name}: run {_sent(name, tracker, entry)}" for name, tracker in _trackers(sinks)]
    return lines + _send_spans(sinks, [entry])


def send_sweep(sinks: SinksConfig, folder: Path, jobs: Sequence[Path]) -> None:
    """Send the runs of a sweep, each a child of one that has the comparison, and say so; raises TwinServeError."""
    failed = [job for job in jobs if (job / FAILED).exists()]
    whole = sweep_entry(folder, len(failed), len(jobs))
    entries = [read_entry(job) for job in jobs]
    for name, tracker in _trackers(sinks):
        parent = _sent(name, tracker, whole, again=True)
        for entry in entries:
            _sent(name, tracker, entry, parent)
        _print([f"{name}: run {parent} with {len(entries)} children"])
    _print(_send_spans(sinks, entries))


def _trackers(sinks: SinksConfig) -> Iterator[tuple[str, Tracker]]:
    if sinks.mlflow is not None:
        with _told("mlflow"):
            tracker: Tracker = MlflowTracker(sinks.mlflow)
        yield "mlflow", tracker
    if sinks.wandb is not None:
        yield "wandb", WandbTracker(sinks.wandb)


def _sent(name: str, tracker: Tracker, entry: Entry, parent: str | None = None, *, again: bool = False) -> str:
    """The id of a run that is there, now or from before; what is to be sent `again` adds to that."""
    record = _record(entry.folder)
    known = record[name]["id"] if record.get(name, {}).get("place") == tracker.place else None
    if known is not None and not again:
        return str(known)
    with _told(name, entry.folder):
        run_id = tracker.send(entry, parent=parent, run_id=known)
    _note(entry.folder, {**record, name: {"id": run_id, "place": tracker.place}})
    return run_id


def _send_spans(sinks: SinksConfig, entries: Sequence[Entry]) -> list[str]:
    if sinks.otel is None:
        return []
    from harness.sinks.otlp import export  # imported late, as it brings OpenTelemetry

    number = 0
    for entry in entries:
        if "otel" not in (record := _record(entry.folder)):
            with _told("otel", entry.folder):
                sent = export(entry, sinks.otel)
            _note(entry.folder, {**record, "otel": {"spans": sent}})
            number += sent
    return [f"otel: {number:,} spans"]


def _print(lines: Sequence[str]) -> None:
    for line in lines:
        print(line, flush=True)


def _record(folder: Path) -> dict[str, Any]:
    try:
        content = read_json(folder / SENT)
    except (DocumentError, OSError):
        return {}
    return content if isinstance(content, dict) else {}


def _note(folder: Path, record: Mapping[str, Any]) -> None:
    text = json.dumps(record, indent=2)
    write_whole(folder / SENT, lambda path: path.write_text(text, encoding="utf-8"))


@contextmanager
def _told(name: str, folder: Path | None = None) -> Iterator[None]:
    """What goes wrong inside, in one line; the tools raise many types of errors."""
    try:
        yield
    except Exception as error:
        where = f"; the results are in {folder}" if folder else ""
        raise TwinServeError(f"sinks.{name}: {_one_line(error)}{where}") from error


def _one_line(error: BaseException) -> str:
    if isinstance(error, SystemExit) and error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).split())
    return text if isinstance(error, TwinServeError) and text else f"{type(error).__name__}: {text}".rstrip(": ")


def _begun_ns(folder: Path) -> int | None:
    """When a task began to write to the folder."""
    path = folder / CONFIG
    return path.stat().st_mtime_ns if path.exists() else None
