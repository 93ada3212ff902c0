"""task=capacity from end to end: its files, resuming, interrupts, errors of users, and the end of a sweep."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from harness import interrupts
from harness.config import RunConfig
from harness.errors import ConfigError, TwinServeError
from harness.studies.capacity import capacity as task
from harness.studies.capacity import worker_pool
from harness.studies.capacity.capacity import probe_config, run_probes
from harness.studies.capacity.capacity_sweep import with_labels, write_capacities
from harness.studies.capacity.keys import load_of, searched_key, with_load
from harness.studies.capacity.load_search import Ask
from harness.studies.capacity.probe import Probe, run_probe
from tests.harness.builders import ROOT, config, execute_in
from tests.harness.studies.capacity.builders import ROOM
from tests.selection import few

TINY = (
    "task=capacity", "model=tiny", "device=laptop-cpu", "trace.num_requests=100", "max_num_batched_tokens=1024",
    "metrics.slo.ttft_ms=500", "capacity.num_requests=300", "capacity.max_probes=8", "capacity.workers=1",
    "device.price_per_gpu_hour=2.0", "device.tdp_w=100",
)  # fmt: skip
SMALL = (*TINY, "arrival.rate=2")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a search over a small system."""
    folder = tmp_path_factory.mktemp("small")
    execute_in(folder, config(*SMALL, "capacity.confirm=2"))
    return folder


def document_in(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "capacity.json").read_text(encoding="utf-8"))


def test_a_search_leaves_its_answer_and_its_probes(small: Path) -> None:
    document = document_in(small)
    (row,) = document["rows"]
    assert (document["over"], document["unit"], document["best"]) == ("arrival.rate", "requests/s", 0)
    assert document["slo"] == {"ttft": 500, "percentile": 99}
    assert row["low"] < row["capacity"] < row["high"]
    assert row["per_gpu"] == row["capacity"] and row["num_gpus"] == 1
    assert len(row["probes"]) == row["num_probes"] <= 8
    for each in row["probes"]:
        assert (small / "probes" / each["folder"] / "summary.json").is_file()
        assert each["holds"] == (each["share"] <= ROOM and each["verdict"] != "overloaded")
    assert document["command"].startswith("vllm serve")
    assert "requests/s" in document["sentence"] and "TTFT within 500 ms" in document["sentence"]
    assert row["precision"] > 0.02
    assert "wider than the ±2 % asked for; capacity.max_probes=16 makes it narrower" in document["sentence"]
    (stored,) = pd.read_csv(small / "capacity.csv").to_dict("records")
    assert stored["capacity"] == pytest.approx(row["capacity"])


def test_the_lower_end_is_confirmed_by_runs_with_other_seeds(small: Path) -> None:
    (row,) = document_in(small)["rows"]
    confirmed = row["confirmed"]
    assert confirmed["num_requests"] == 600 and [each["num_requests"] for each in confirmed["runs"]] == [300, 300]
    assert confirmed["value"] == pytest.approx(row["low"])
    seeds = [each["seed"] for each in (*row["probes"], *confirmed["runs"])]
    assert len(set(seeds)) == len(seeds)
    assert confirmed["share"] == pytest.approx(sum(each["share"] for each in confirmed["runs"]) / 2)
    assert "In 2 runs of 300 requests each" in document_in(small)["sentence"]


def test_a_search_is_gone_on_with_and_repeats_no_run(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = document_in(small)

    def fail(*arguments: object) -> None:
        raise AssertionError("a finished probe was run again")

    monkeypatch.setattr("harness.studies.capacity.probe.serve_trace", fail)
    execute_in(small, config(*SMALL, "capacity.confirm=2"))
    assert document_in(small) == before


@pytest.mark.parametrize("num_done", [1, 4])
def test_an_interrupted_search_keeps_its_probes_and_the_answer_so_far(
    num_done: int, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    num_runs = 0

    def interrupted(*job: Any) -> Probe:
        nonlocal num_runs
        num_runs += 1
        if num_runs > num_done:
            raise KeyboardInterrupt
        return run_probe(*job)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(worker_pool, "run_probe", interrupted)
        execute_in(tmp_path, config(*SMALL))
    assert len(list(tmp_path.glob("probes/*/probe.json"))) == num_done
    (row,) = document_in(tmp_path)["rows"]
    assert row["probes"] == document_in(small)["rows"][0]["probes"][:num_done]
    assert (row["capacity"] is None) == (num_done == 1)
    assert document_in(tmp_path)["sentence"] in " ".join(capsys.readouterr().out.split())
    assert "Interrupted: this is the answer so far" in document_in(tmp_path)["sentence"]
    assert with_labels([row, row])[0]["label"].endswith(" (interrupted)")


def test_an_interrupt_waits_until_the_processes_have_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose start is cut off is unknown, runs on, and prints a traceback."""
    started: list[object] = []

    class Starting:
        def submit(self, job: object) -> None:
            signal.raise_signal(signal.SIGINT)
            started.append(job)

    monkeypatch.setattr(worker_pool, "_pool", lambda workers: Starting())
    with interrupts.raised(), pytest.raises(KeyboardInterrupt):
        worker_pool.submit(2, lambda: None)
    assert started


@pytest.mark.long
def test_a_signal_ends_a_search_with_the_answer_so_far(tmp_path: Path) -> None:
    """As Ctrl-C in a terminal does: all processes of the search get it."""
    command = [sys.executable, "run.py", *SMALL, "plots=false", "capacity.workers=2", f"hydra.run.dir={tmp_path}"]
    command += ["capacity.num_requests=3000", "capacity.max_probes=100", "capacity.precision=0.001"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        while len(list(tmp_path.glob("probes/*/probe.json"))) < 5:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        printed, errors = process.communicate(timeout=90)
    finally:
        process.kill()
    assert (process.returncode, errors.splitlines()[-1]) == (130, "interrupted") and "Traceback" not in errors
    assert "this is the answer so far" in " ".join(printed.split())
    assert document_in(tmp_path)["rows"][0]["capacity"] > 0


@pytest.mark.parametrize("of_servers", few([False, True], 1, pytest.mark.long))
def test_a_terminal_shows_an_answer_that_gets_narrower_and_the_time_left(of_servers: bool, tmp_path: Path) -> None:
    asked = ("capacity.target_rate=200", "metrics.slo.tpot_ms=40") if of_servers else ()
    out = Console(file=StringIO(), force_terminal=True, width=120)
    task.find(config(*SMALL, *asked, "progress=true"), tmp_path, [], out)
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", out.file.getvalue())  # type: ignore[attr-defined]
    ranges = re.findall(r"[━╸╺] so far ([\d.]+)(?: to ([\d.]+))? (?:servers|requests/s) [^o]", shown)
    widths = [float(high or low) - float(low) for low, high in ranges]
    assert re.search(r"so far [\d.]+ (requests/s|servers) or more", shown) and re.search(r"about \d+ s left", shown)
    assert len(widths) > 1 and widths[-1] < widths[0]


def test_a_changed_configuration_runs_its_probes_anew(small: Path) -> None:
    settings = config(*SMALL)
    (first,) = run_probes(settings, "arrival.rate", small, [Ask(2.0, 0, 60)])
    folder = small / "probes" / first.folder
    stamp = (folder / "probe.json").stat().st_mtime_ns
    run_probes(settings, "arrival.rate", small, [Ask(2.0, 0, 60)])
    assert (folder / "probe.json").stat().st_mtime_ns == stamp
    run_probes(config(*SMALL, "max_num_seqs=8"), "arrival.rate", small, [Ask(2.0, 0, 60)])
    assert (folder / "probe.json").stat().st_mtime_ns != stamp


def test_processes_find_what_one_process_finds(tmp_path: Path) -> None:
    settings = config(*SMALL)
    asks = [Ask(2.0, 0, 60), Ask(4.0, 1, 60)]
    alone = run_probes(settings, "arrival.rate", tmp_path / "a", asks)
    jobs = [
        (
            probe_config(with_load(settings, "arrival.rate", ask.load), ask.number, 60),
            "arrival.rate",
            tmp_path / name,
            0,
        )
        for ask, name in zip(asks, ("2-seed0", "4-seed1"), strict=True)
    ]
    assert worker_pool.run_all(jobs, 2) == alone


def test_probes_are_plain_runs_with_seeds_of_their_own() -> None:
    settings = config(*SMALL, "seed=3")
    probes = [probe_config(settings, number, 50) for number in range(4)]
    assert [each.seed for each in probes] == [3000, 3001, 3002, 3003]
    assert {(each.task, each.trace.num_requests) for each in probes} == {("run", 50)}  # type: ignore[union-attr]
    closed = config(*TINY, "arrival=closed_loop", "arrival.concurrency=64")
    assert probe_config(closed, 0, 100).trace.num_requests == 640  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ((), "arrival.rate"),
        (("arrival=closed_loop",), "arrival.concurrency"),
        (("arrival=sessions",), "arrival.rate"),
        (("arrival=trace",), "arrival.time_scale"),
        (("capacity.over=max_model_len", "max_model_len=900"), "max_model_len"),
    ],
)
def test_the_load_of_the_arrivals_is_searched_unless_a_key_is_given(overrides: Sequence[str], key: str) -> None:
    settings = config(*TINY, *overrides)
    assert searched_key(settings) == key
    doubled = with_load(settings, key, 2 * load_of(settings, key))
    assert load_of(doubled, key) == pytest.approx(2 * load_of(settings, key))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("metrics.slo.ttft_ms=null",), "metrics.slo: task=capacity needs a limit to hold"),
        (("capacity.over=arrival.rat",), "arrival.rat: unknown key; did you mean 'rate'?"),
        (("capacity.over=model.name",), "must be a key with a number above 0"),
        (("capacity.over=num_blocks",), "capacity.over=num_blocks: is null here"),
        (("capacity.over=plots",), "capacity.over=plots: is False here"),
        (("capacity.over=arrival",), "capacity.over=arrival: is a group here"),
        (("arrival=all_at_once",), "arrival=all_at_once: has no load to raise"),
        (("task=run",), ": read by task=capacity"),
        (("capacity.precision=0",), "capacity.precision=0: must be a number >= 0.001"),
    ],
)
def test_errors_of_users_are_one_line(overrides: Sequence[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(TwinServeError) as error:
        execute_in(tmp_path, config(*TINY, *overrides))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_value_out_of_range_is_an_error_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match="max_num_seqs=2048"):  # more than max_num_batched_tokens
        with_load(config(*SMALL), "max_num_seqs", 2048)


def test_the_end_of_a_sweep_is_one_table(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_capacities([small, small], tmp_path)
    document = document_in(tmp_path)
    assert len(document["rows"]) == 2 and document["best"] == 0
    assert document["command"] == document_in(small)["command"]
    assert "Best: " in capsys.readouterr().out
    assert len(pd.read_csv(tmp_path / "capacity.csv")) == 2


def test_the_answer_of_another_version_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "capacity.json").write_text("[]")
    with pytest.raises(TwinServeError, match="not the result of task=capacity"):
        write_capacities([tmp_path], tmp_path)


def test_the_seed_of_a_search_leaves_room_for_those_of_its_probes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seed"):
        task.find(config(*SMALL, "seed=9223372036854775807"), tmp_path, [])


def test_a_sweep_confirms_its_best_unless_it_was_interrupted(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirmed: list[Path] = []

    def confirm(settings: RunConfig, load: float, folder: Path, *arguments: object) -> dict[str, Any]:
        confirmed.append(folder)
        return document_in(small)["rows"][0]["confirmed"]

    monkeypatch.setattr(task, "confirm", confirm)
    write_capacities([small], tmp_path, confirms=False)
    assert not confirmed
    write_capacities([small], tmp_path)
    assert confirmed == [small]
