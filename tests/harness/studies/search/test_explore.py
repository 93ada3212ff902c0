"""task=search: Optuna's trials are stored, gone on with, and end in the best configuration."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from harness.config import RunConfig
from harness.errors import ConfigError, TwinServeError
from harness.studies.capacity.load_search import find_capacity
from tests.harness.builders import config, execute_in
from tests.harness.studies.capacity.builders import ROOM, World
from tests.selection import few

optuna = pytest.importorskip("optuna")
from harness.studies.capacity import worker_pool  # noqa: E402
from harness.studies.search import explore, space  # noqa: E402

TINY = (
    "task=search", "model=tiny", "device=laptop-cpu", "trace.num_requests=60", "arrival.rate=4",
    "max_num_batched_tokens=1024",
)  # fmt: skip
CAPACITY = (*TINY, "metrics.slo.ttft_ms=500", "capacity.workers=1")
SEATS = "search.space={max_num_seqs:8..64}"


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seats that were searched; capacities are made up: the number of seats, up to 40."""
    searched: list[int] = []

    def search(settings: RunConfig, *arguments: object) -> Any:
        searched.append(settings.max_num_seqs)
        return find_capacity(World(capacity_of(settings)).run, 4.0, settings.capacity, ROOM)

    def run_probes(settings: RunConfig, key: str, folder: Path, asks: Any) -> Any:
        return World(capacity_of(settings)).run(asks)

    monkeypatch.setattr(explore, "search", search)
    monkeypatch.setattr(explore, "run_probes", run_probes)
    return searched


def capacity_of(settings: RunConfig) -> float:
    return float(min(settings.max_num_seqs, 40))


def documents(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    search, table = (json.loads((folder / f"{name}.json").read_text()) for name in ("search", "capacity"))
    return search, table


@pytest.mark.long
def test_the_best_of_a_space_is_found_and_losers_are_given_up(made_up: list[int], tmp_path: Path) -> None:
    execute_in(tmp_path, config(*CAPACITY, SEATS, "search.trials=12"))
    search, table = documents(tmp_path)
    rows = search["rows"]
    assert len(rows) == 12
    best = rows[search["best"]]
    assert int(best["overrides"]["max_num_seqs"]) >= 36
    given_up = [row for row in rows if row["given_up"]]
    assert given_up and len(made_up) == 12 - len(given_up) == len(table["rows"])
    assert "the last -" not in search["sentence"]
    for row in given_up:  # all of them have clearly less than the best
        assert row["value"] is None
        assert int(row["overrides"]["max_num_seqs"]) < 40
    assert table["rows"][table["best"]]["label"] == best["label"]
    assert (
        "vllm serve" in search["command"] and f"--max-num-seqs {best['overrides']['max_num_seqs']}" in search["command"]
    )


def test_no_configuration_is_tried_twice_and_a_small_space_ends(made_up: list[int], tmp_path: Path) -> None:
    execute_in(tmp_path, config(*CAPACITY, "search.space={max_num_seqs:37..40}", "search.trials=9"))
    rows = documents(tmp_path)[0]["rows"]
    assert sorted(int(row["overrides"]["max_num_seqs"]) for row in rows) == [37, 38, 39, 40]


def test_a_trial_is_given_up_only_below_what_the_best_surely_has(
    made_up: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best of many noisy capacities is too high: at that load the same configuration would fail."""
    scouted: list[float] = []
    run_probes = explore.run_probes

    def noted(settings: RunConfig, key: str, folder: Path, asks: Any) -> Any:
        scouted.extend(ask.load for ask in asks)
        return run_probes(settings, key, folder, asks)

    monkeypatch.setattr(explore, "run_probes", noted)
    execute_in(tmp_path, config(*CAPACITY, "search.space={max_num_seqs:[50,60]}", "search.trials=2"))
    first = documents(tmp_path)[1]["rows"][0]
    assert scouted == [first["low"]] and first["low"] < first["capacity"]


def test_a_search_goes_on_from_its_storage(made_up: list[int], tmp_path: Path) -> None:
    execute_in(tmp_path, config(*CAPACITY, SEATS, "search.trials=3"))
    before = documents(tmp_path)[0]["rows"]
    execute_in(tmp_path, config(*CAPACITY, SEATS, "search.trials=5"))
    after = documents(tmp_path)[0]["rows"]
    assert after[:3] == before and len(after) == 5


def test_a_trial_that_was_interrupted_is_run_again(
    made_up: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(explore, "search", interrupted)
        execute_in(tmp_path, config(*CAPACITY, SEATS, "search.trials=2"))
    study = optuna.load_study(study_name="search", storage=f"sqlite:///{tmp_path / 'optuna.db'}")
    (left,) = study.trials
    execute_in(tmp_path, config(*CAPACITY, SEATS, "search.trials=1"))
    assert made_up == [left.params["max_num_seqs"]]


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads in place of processes, which see what a test replaces."""
    with ThreadPoolExecutor(4) as executor:
        monkeypatch.setattr(worker_pool, "_pool", lambda workers: executor)
        monkeypatch.setattr(worker_pool, "end_processes", lambda: None)
        yield


@pytest.mark.usefixtures("threads")
@pytest.mark.long
def test_trials_at_a_time_are_all_told_to_one_study(
    made_up: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    barrier, counts = threading.Barrier(4), itertools.count()
    search = explore.search

    def together(*arguments: Any) -> Any:
        if next(counts) < 4:  # passes only if four trials are under way at once
            barrier.wait(timeout=30)
        return search(*arguments)

    monkeypatch.setattr(explore, "search", together)
    execute_in(tmp_path, config(*CAPACITY, SEATS, "search.trials=10", "search.workers=4"))
    found, table = documents(tmp_path)
    assert len(found["rows"]) == 10
    done = [row for row in found["rows"] if row["value"] is not None]
    assert len(done) == len(table["rows"]) == len(made_up) >= 4
    for row in done:
        assert row["value"] == pytest.approx(min(int(row["overrides"]["max_num_seqs"]), 40), rel=0.1)
    assert found["rows"][found["best"]]["value"] == max(row["value"] for row in done)


@pytest.mark.slow
@pytest.mark.usefixtures("threads")
def test_trials_that_were_interrupted_together_are_run_again(
    made_up: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(explore, "search", interrupted)
        execute_in(tmp_path, config(*CAPACITY, SEATS, "search.trials=6", "search.workers=3"))
    study = optuna.load_study(study_name="search", storage=f"sqlite:///{tmp_path / 'optuna.db'}")
    left = sorted(trial.params["max_num_seqs"] for trial in study.trials)
    assert len(left) == 3
    execute_in(tmp_path, config(*CAPACITY, SEATS, "search.trials=3", "search.workers=3"))
    assert sorted(int(row["overrides"]["max_num_seqs"]) for row in documents(tmp_path)[0]["rows"]) == left


@pytest.mark.slow
def test_processes_find_what_one_finds(tmp_path: Path) -> None:
    values = {}
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        given = ("search.objective=p99_e2el_ms", "search.direction=minimize", f"search.workers={workers}")
        execute_in(folder, config(*TINY, *given, "search.space={max_num_seqs:[1,8,64]}", "search.trials=8"))
        rows = json.loads((folder / "search.json").read_text())["rows"]
        assert len(rows) == 3
        values[workers] = {row["overrides"]["max_num_seqs"]: row["value"] for row in rows}
    assert values[1] == values[2]


def test_a_run_that_refuses_requests_is_no_best(tmp_path: Path) -> None:
    space = "search.space={num_blocks:[2,2000]}"
    execute_in(tmp_path, config(*TINY, "search.objective=median_ttft_ms", "search.direction=minimize", space))
    document = json.loads((tmp_path / "search.json").read_text())
    given_up = {row["overrides"]["num_blocks"]: row["given_up"] for row in document["rows"]}
    assert given_up["2000"] is None and given_up["2"].startswith("not all served: ")
    assert document["rows"][document["best"]]["overrides"] == {"num_blocks": "2000"}


def test_another_space_in_the_folder_is_an_error(made_up: list[int], tmp_path: Path) -> None:
    execute_in(tmp_path, config(*CAPACITY, SEATS, "search.trials=1"))
    with pytest.raises(ConfigError, match="this folder holds a search of another space"):
        execute_in(tmp_path, config(*CAPACITY, "search.space={max_num_seqs:[8,16]}", "search.trials=2"))


def test_a_number_of_the_summary_is_an_objective(tmp_path: Path) -> None:
    objective = ("search.objective=median_e2el_ms", "search.direction=minimize")
    execute_in(tmp_path, config(*TINY, *objective, "search.space={max_num_seqs:[1,64]}", "search.trials=4"))
    document = json.loads((tmp_path / "search.json").read_text())
    values = {row["overrides"]["max_num_seqs"]: row["value"] for row in document["rows"]}
    assert document["rows"][document["best"]]["value"] == min(values.values())
    assert (tmp_path / document["rows"][0]["folder"] / "summary.json").is_file()
    assert not (tmp_path / "capacity.json").exists()


@pytest.mark.parametrize("objective", few(["output_throughput", "capacity_per_gpu"], 1, pytest.mark.long))
def test_step_times_of_two_kinds_are_told_before_the_best(
    objective: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = "search.space={quantization:[none,int8]}"  # no kernels in int8 come with the project
    limits = ("metrics.slo.ttft_ms=60000", "capacity.num_requests=100", "capacity.max_probes=6", "capacity.workers=1")
    only = limits if objective == "capacity_per_gpu" else ("trace.num_requests=20",)
    settings = config("task=search", "cost=profiled", space, f"search.objective={objective}", "search.trials=2", *only)
    execute_in(tmp_path, settings)
    text = " ".join(capsys.readouterr().out.split())
    assert 0 < text.index("1 of 2 configurations have step times from the roofline") < text.index("Best")


def test_contradicting_configurations_are_given_up(made_up: list[int], tmp_path: Path) -> None:
    """More seats than tokens of a step are refused; other trials go on."""
    given = (*CAPACITY, "search.space={max_num_seqs:[16,2048]}", "search.trials=6")
    execute_in(tmp_path, config(*given))
    rows = documents(tmp_path)[0]["rows"]
    assert {row["given_up"] is not None for row in rows if row["overrides"]["max_num_seqs"] == "2048"} <= {True}
    assert set(made_up) == {16}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((), "search.space: task=search needs keys to vary"),
        (("search.space={max_num_seqs:many}",), "must be a list of values or a range such as '128..1024'"),
        (("search.space={max_num_seqs:9..8}",), "the first number must be below the second"),
        (("search.space={max_num_seqs:[]}",), "search.space"),
        (("search.space={seed:1..9}",), "search.space.seed: the best seed is the luckiest"),
        (
            ("search.space={arrival.rate:1..9}", "search.objective=capacity_per_gpu", "metrics.slo.ttft_ms=5"),
            "search.space.arrival.rate: the load is what each trial searches for",
        ),
        (("search.space={capacity.precision:[0.1,0.2]}",), "search.space.capacity.precision: changes what is asked"),
        (("search.space={max_num_sees:[1,2]}", "search.trials=2"), "max_num_sees: unknown key"),
        ((SEATS, "search.objective=goodness", "search.trials=1"), "the summary of a run has no such number"),
        ((SEATS, "search.objective=capacity_per_gpu"), "metrics.slo: task=search needs a limit to hold"),
    ],
)
@pytest.mark.sample(5)
def test_errors_of_users_are_one_line(overrides: tuple[str, ...], message: str, tmp_path: Path) -> None:
    objective = () if any("objective" in each for each in overrides) else ("search.objective=output_throughput",)
    with pytest.raises(TwinServeError) as error:
        execute_in(tmp_path, config(*TINY, *objective, *overrides))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_ranges_are_whole_where_their_ends_are() -> None:
    settings = config(*CAPACITY, "search.space={a:1..4,b:0.5..0.9,c:16..4096,d:[true,null]}").search
    found = space.space_of(settings)
    assert found["a"] == optuna.distributions.IntDistribution(1, 4)
    assert found["b"] == optuna.distributions.FloatDistribution(0.5, 0.9)
    assert found["c"] == optuna.distributions.IntDistribution(16, 4096, log=True)
    assert found["d"] == optuna.distributions.CategoricalDistribution([True, None])
    assert [space.text(value) for value in (True, None, 0.5, "vllm")] == ["true", "null", "0.5", "vllm"]
