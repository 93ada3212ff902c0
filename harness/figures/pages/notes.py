"""What a reader of several runs must know of them, each said once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import TwinServeError
from harness.figures.pages.words import count
from harness.results.stored.files import read_summary

if TYPE_CHECKING:
    import pandas as pd

_MOST_RUNS = 200  # whose notes are read


def notes_of(runs: pd.DataFrame) -> list[str]:
    """What is to be known of these runs, of the first of those that can be read."""
    found = {}
    for run, folder in runs.loc[runs["status"] != "failed", ["run", "folder"]].to_numpy()[:_MOST_RUNS].tolist():
        with suppress(TwinServeError):
            found[str(run)] = [str(note) for note in read_summary(Path(folder)).get("notes") or ()]
    return shared_notes(found)


def shared_notes(notes: Mapping[str, Sequence[str]]) -> list[str]:
    """The notes of all runs by the run's name; those that differ in numbers only stand for one another."""
    alike: dict[str, dict[str, str]] = {}
    for run, texts in notes.items():
        for text in texts:
            alike.setdefault(re.sub(r"\d[\d.,]*", "0", text), {}).setdefault(run, text)
    return [_told(found, len(notes)) for found in alike.values()]


def _told(found: Mapping[str, str], num_runs: int) -> str:
    """One note with the runs that have it."""
    (run, text), *others = found.items()
    if len(found) == num_runs and len({*found.values()}) == 1:
        return text
    if not others:
        return f"{run}: {text}"
    alike = "similar" if len({*found.values()}) > 1 else "the same"
    return f"{text} ({run}; {alike} for {count(len(others), 'other run')})"
