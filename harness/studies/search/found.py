"""What a search has found so far: its trials as rows of search.json, and a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from harness.config import RunConfig
from harness.config.schema.tasks.capacity import SearchConfig
from harness.errors import TwinServeError
from harness.results.summary import number
from harness.studies.search.space import text


def finished(study: optuna.Study) -> list[FrozenTrial]:
    """The trials that have ended, given up or not."""
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))


def value_of(trial: FrozenTrial) -> float | None:
    """The objective; None of a trial that was given up, for which Optuna tells what was last reported."""
    return trial.value if trial.state == TrialState.COMPLETE else None


def search_document(study: optuna.Study, config: RunConfig) -> dict[str, Any]:
    """The content of search.json.

    Raises:
        TwinServeError: no trial has a value.
    """
    trials = finished(study)
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    if not done:
        reasons = [trial.user_attrs["given_up"] for trial in trials if "given_up" in trial.user_attrs]
        raise TwinServeError(f"task=search: no trial came to an end{f'; the first: {reasons[0]}' if reasons else ''}")
    best = study.best_trial
    rows = [
        {
            "label": trial.user_attrs["label"],
            "overrides": {key: text(value) for key, value in trial.params.items()},
            "value": value_of(trial),
            "cost_source": trial.user_attrs.get("cost_source"),
            "given_up": trial.user_attrs.get("given_up"),
            "folder": f"trials/{trial.number}",
        }
        for trial in trials
    ]
    settings = config.search
    return {
        "question": f"{settings.direction} {settings.objective} over {', '.join(settings.space or ())}",
        "objective": settings.objective,
        "direction": settings.direction,
        "rows": rows,
        "best": trials.index(best),
        "sentence": _sentence(rows, trials.index(best), settings),
        "command": best.user_attrs["command"],
    }


def _sentence(rows: Sequence[dict[str, Any]], best: int, settings: SearchConfig) -> str:
    text_ = f"Best of {len(rows)} trials: {rows[best]['label']} with {settings.objective} {number(rows[best]['value'])}"
    values = sorted(
        (row["value"] for i, row in enumerate(rows) if i != best and row["value"] is not None), reverse=True
    )
    if settings.direction == "minimize":
        values.reverse()
    others = f"; the next has {number(values[0])}, the last {number(values[-1])}" if values else ""
    given_up = sum(row["given_up"] is not None for row in rows)
    return f"{text_}{others}{f'; {given_up} were given up' if given_up else ''}."
