"""task=search: the best configuration of a space that is too large to sweep, with Optuna.

<folder>/search.json    the question, the answer, and each trial
         capacity.json  the same as a table of capacities, where these were searched for
         optuna.db      Optuna's storage, from which a search in the same folder goes on
         trials/<n>/    the probes, or the run, of each trial
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from hydra.errors import HydraException
from optuna.distributions import BaseDistribution
from optuna.trial import Trial, TrialState
from rich.console import Console
from rich.text import Text

from harness.config import RunConfig
from harness.config.schema.tasks.capacity import SearchConfig
from harness.engines.resolving.serve_line import serve_line
from harness.errors import ConfigError, TwinServeError
from harness.results.measures.step_times import mixed_text
from harness.results.measures.unserved import unserved_text
from harness.results.metrics import json_ready
from harness.results.stored.files import SEARCH, write_whole
from harness.results.summary import number
from harness.studies.capacity.capacity import make_document, run_probes, search
from harness.studies.capacity.capacity_sweep import best_of, best_sentence
from harness.studies.capacity.keys import searched_key, with_load
from harness.studies.capacity.load_search import SCOUT_SHARE, Ask, Capacity
from harness.studies.capacity.probe import run_quietly
from harness.studies.capacity.row import Row, cost_source, room_of, row_of
from harness.studies.capacity.table import print_table, write_document
from harness.studies.capacity.worker_pool import ended_on_failure, num_workers, submit
from harness.studies.search.found import finished, search_document, value_of
from harness.studies.search.space import CAPACITY_PER_GPU, check_keys, configuration, draw_untried, space_of, text

_GIVE_UP = 3.0  # times the allowed share of slow requests: a first probe with more ends the search of a configuration
_STARTING = 8  # trials at random before Optuna's sampler learns from them, or a third of all
_MOST_ASKS = 3  # for a configuration that was not tried yet, before one is drawn
_SPACE = "space"
Job = Callable[[], Any]
Jobs = Generator[Job, Any, float | None]


def explore(config: RunConfig, folder: Path) -> dict[str, Any]:
    """Search as `config.search` says, going on from the trials that are in the folder; write and print what was found.

    Raises:
        TwinServeError: the space or the configuration cannot be used, or the folder holds another search.
        KeyboardInterrupt: the search was interrupted; the trials that ended are kept.
    """
    console = Console()
    check_keys(config)
    study = _study(config, folder)
    _run_trials(study, config, folder, console)
    document = search_document(study, config)
    content = json.dumps(json_ready(document), indent=2, allow_nan=False) + "\n"
    write_whole(folder / SEARCH, lambda path: path.write_text(content, encoding="utf-8"))
    _conclude(study, document, config, folder, console)
    return document


def _study(config: RunConfig, folder: Path) -> optuna.Study:
    """The study in the folder, or a new one; trials that an interrupt left under way are queued again."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    settings = config.search
    study = optuna.create_study(
        study_name="search",
        storage=f"sqlite:///{folder.resolve() / 'optuna.db'}",
        load_if_exists=True,
        direction=settings.direction,
        pruner=optuna.pruners.ThresholdPruner(lower=-_GIVE_UP * room_of(config)),
    )
    asked = {key: list(value) if isinstance(value, tuple) else value for key, value in (settings.space or {}).items()}
    question = {"space": asked, "objective": settings.objective, "direction": settings.direction}
    earlier = study.user_attrs.get(_SPACE, question)
    if earlier != question:
        raise ConfigError("search: this folder holds a search of another space or objective; choose another folder")
    study.set_user_attr(_SPACE, question)
    for trial in study.get_trials(states=(TrialState.RUNNING,)):
        study.tell(trial.number, state=TrialState.FAIL)
        study.enqueue_trial(trial.params)
    num_random = max(1, min(_STARTING, settings.trials // 3))
    seed = config.seed + len(study.trials)
    several = settings.workers > 1  # then trials under way count as bad ones, so that others look elsewhere
    study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=num_random, constant_liar=several)
    return study


def _run_trials(study: optuna.Study, config: RunConfig, folder: Path, console: Console) -> None:
    """Run trials until there are as many as asked for, `search.workers` of them at a time. Only this process tells the
    study anything; the others run probes and searches."""
    settings, space, began = config.search, space_of(config.search), time.monotonic()
    workers = num_workers([config], settings.workers)
    under_way: dict[Future[Any], _TrialUnderWay] = {}

    def begins_another() -> bool:
        in_time = settings.time_s is None or time.monotonic() - began <= settings.time_s
        return in_time and len(finished(study)) + len(under_way) < settings.trials

    def go_on(current: _TrialUnderWay, result: Future[Any] | None) -> None:
        if (job := current.next_job(result)) is not None:
            under_way[submit(workers, job)] = current
        else:
            console.print(Text(f"{len(finished(study))}/{settings.trials}  {current.text()}"), soft_wrap=True)

    with ended_on_failure():
        while under_way or begins_another():
            while len(under_way) < workers and begins_another() and (trial := ask_another(study, space)) is not None:
                go_on(_TrialUnderWay(study, trial, config, folder), None)
            if not under_way:
                console.print("every configuration of search.space was tried", highlight=False)
                return
            done, _ = wait(under_way, return_when=FIRST_COMPLETED)
            for future in done:
                go_on(under_way.pop(future), future)


def ask_another(study: optuna.Study, space: Mapping[str, BaseDistribution]) -> Trial | None:
    """A trial of a configuration that no other trial has; None where none is left.

    Optuna may suggest the best configuration again and again, of which a second run tells nothing new.
    """
    states = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
    tried = {_values(trial.params) for trial in study.get_trials(deepcopy=False, states=states)}
    for _ in range(_MOST_ASKS):
        trial = study.ask(dict(space))
        if _values(trial.params) not in tried:
            return trial
        study.tell(trial, state=TrialState.FAIL)
    if (params := draw_untried(space, lambda found: _values(found) in tried, len(study.trials))) is None:
        return None
    study.enqueue_trial(params)
    return study.ask(dict(space))


def _values(params: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((key, text(value)) for key, value in params.items()))


class _TrialUnderWay:
    """A trial as a row of jobs. Its outcome is told to the study when the last one has ended.

    A configuration that contradicts itself is a pruned trial.
    """

    def __init__(self, study: optuna.Study, trial: Trial, config: RunConfig, folder: Path) -> None:
        self._study = study
        self._trial = trial
        self._jobs = _evaluate(study, trial, config, folder / "trials" / str(trial.number))
        trial.set_user_attr("label", " ".join(f"{key}={text(value)}" for key, value in trial.params.items()))

    def next_job(self, result: Future[Any] | None) -> Job | None:
        """The job that follows after the result of the one before; None after the last one."""
        value: float | None = None
        try:
            return self._jobs.send(None if result is None else result.result())
        except StopIteration as end:
            value = end.value
        except (ConfigError, HydraException) as error:
            self._trial.set_user_attr("given_up", str(error))
        state = TrialState.PRUNED if value is None else TrialState.COMPLETE
        self._study.tell(self._trial, value, state=state)
        return None

    def text(self) -> str:
        """The configuration and its value, or why it has none."""
        told = self._study.trials[self._trial.number]
        value = value_of(told)
        return f"{told.user_attrs['label']}  {told.user_attrs.get('given_up') if value is None else number(value)}"


def _evaluate(study: optuna.Study, trial: Trial, base: RunConfig, folder: Path) -> Jobs:
    """Find the objective of a configuration; None where it is given up. Yields jobs and receives their results."""
    config = configuration(base, trial.params)
    trial.set_user_attr("cost_source", cost_source(config))
    if config.search.objective != CAPACITY_PER_GPU:
        plain = config.model_copy(update={"task": "run", "progress": False, "plots": False, "search": SearchConfig()})
        summary = yield partial(_run, plain, folder)
        return _objective(trial, config, summary)
    num_gpus, key = config.num_gpus, searched_key(config)
    if best := _best_row(study):
        surely = best["low"] / best["num_gpus"]
        ask = Ask(surely * num_gpus, 0, max(1, config.capacity.num_requests // SCOUT_SHARE))
        (probe,) = yield partial(run_probes, config, key, folder, [ask])
        trial.report(-1.0 if probe.overloaded else -probe.share, 0)
        if trial.should_prune():
            trial.set_user_attr("given_up", "fails at once at the best capacity so far")
            return None
        config = with_load(config, key, best["per_gpu"] * num_gpus)
    found = yield partial(_search, config, folder)
    overrides = {key: text(value) for key, value in trial.params.items()}
    row = row_of(config, found, trial.user_attrs["label"], overrides)
    trial.set_user_attr("row", json_ready({**row, "trial": trial.number}))
    trial.set_user_attr("command", serve_line(config))
    return row["per_gpu"] or 0.0


def _best_row(study: optuna.Study) -> Row | None:
    """What is known of the configuration with the highest capacity per GPU of all trials so far."""
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    rows: list[Row] = [trial.user_attrs["row"] for trial in done if trial.value]
    return max(rows, key=lambda row: row["per_gpu"], default=None)


def _search(config: RunConfig, folder: Path) -> Capacity:
    return search(config, folder, Console(quiet=True))


def _run(config: RunConfig, folder: Path) -> dict[str, Any]:
    return run_quietly(config, folder).summary


def _objective(trial: Trial, config: RunConfig, summary: dict[str, Any]) -> float | None:
    """The number of the summary of a run that is the objective; None for a run that refused requests or cut them."""
    if unserved := unserved_text(summary):
        trial.set_user_attr("given_up", f"not all served: {unserved}")
        return None
    value = summary.get(config.search.objective)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TwinServeError(f"search.objective={config.search.objective}: the summary of a run has no such number")
    trial.set_user_attr("command", summary["vllm_command"])
    return float(value)


def _conclude(study: optuna.Study, document: dict[str, Any], config: RunConfig, folder: Path, console: Console) -> None:
    """Print what was found; of capacities also the table, which goes to capacity.json too."""
    rows = [trial.user_attrs["row"] for trial in finished(study) if "row" in trial.user_attrs]
    if rows:
        best = best_of(rows)
        sentence = best_sentence(rows, best, searched_key(config))
        table = make_document(config, rows, sentence, document["command"]) | {"best": best}
        write_document(table, folder)
        print_table(table, console, document["rows"])
    else:
        if mixed := mixed_text(row["cost_source"] for row in document["rows"]):
            console.print(Text(f"! {mixed}", style="bold"))
        console.print(document["sentence"], highlight=False)
        console.print(Text(document["command"], style="cyan"), soft_wrap=True)
    console.print(f"results: {folder}", highlight=False, soft_wrap=True)
