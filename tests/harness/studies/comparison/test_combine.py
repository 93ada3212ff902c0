"""What tells runs apart: options of groups, keys, the load and seeds; repetitions as means; baselines."""

from __future__ import annotations

import io
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy import stats

from engine.documents import yaml_text
from harness.errors import ConfigError
from harness.studies.comparison.combine import combine
from harness.studies.comparison.comparison import compare_folders, write_comparison
from harness.studies.comparison.comparison_table import print_comparison
from harness.studies.comparison.folders import job_folders
from harness.studies.comparison.parameters import Settings, find_swept
from harness.studies.comparison.repeats import baseline_label, configurations, t_interval, with_differences
from tests.harness.results.builders import store

SCHEDULERS: dict[str, dict[str, Any]] = {
    "mixed": {"policy": "mixed", "watermark": 0.02, "async_scheduling": False, "options": {}},
    "vllm": {"policy": "admission_order", "watermark": 0.0, "async_scheduling": True, "options": {"a": [1]}},
    "vllm_late": {"policy": "admission_order", "watermark": 0.0, "async_scheduling": False, "options": {}},
}


def run_of(scheduler: str = "mixed", rate: float = 12.0, seed: int = 0, **more: Any) -> dict[str, Any]:
    kind = {"kind": "poisson", "rate": rate}
    return {"seed": seed, "block_size": 16, "scheduler": SCHEDULERS[scheduler], "arrival": kind, **more}


def write_run(folder: Path, config: dict[str, Any], choices: dict[str, Any] | None = None, **metrics: Any) -> Path:
    """A result folder that only holds what `combine` reads."""
    folder.mkdir(parents=True)
    document = {
        "simulated": True, "complete": True, "block_size": config["block_size"], "num_blocks": 100,
        "output_throughput": 10.0, "window_start_s": 0.0, "window_end_s": 1.0, "config": config,
        "model": "qwen3-8b", "device": "h100", "p99_ttft_ms": 50.0, "p99_tpot_ms": 5.0,
        "environment": {"git_revision": "0123456789", "git_dirty": False},
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps({**document, **metrics}))
    if choices is not None:
        (folder / ".hydra").mkdir()
        text = "\n".join(f"    {line}" for line in yaml_text({"choices": choices}).splitlines())
        (folder / ".hydra" / "hydra.yaml").write_text(
            f"hydra:\n  runtime:\n    version: 1.3.2\n{text}\n  verbose: false\n"
        )
    return folder


def sweep(tmp_path: Path, runs: list[tuple[dict[str, Any], dict[str, Any] | None]], **metrics: Any) -> pd.DataFrame:
    return combine([write_run(tmp_path / str(i), *run, **metrics) for i, run in enumerate(runs)])


def test_a_swept_group_is_labelled_by_its_options(tmp_path: Path) -> None:
    runs = sweep(tmp_path, [(run_of(name), {"scheduler": name, "hydra/launcher": "basic"}) for name in SCHEDULERS])
    assert runs.attrs["parameters"] == ["scheduler"] and runs.attrs["load"] is None
    assert runs["label"].tolist() == runs["scheduler"].tolist() == list(SCHEDULERS)


def test_without_stored_choices_the_defining_key_labels_a_group(tmp_path: Path) -> None:
    runs = sweep(tmp_path, [(run_of("mixed"), None), (run_of("vllm"), {"scheduler": "vllm"})])
    assert runs.attrs["parameters"] == ["scheduler.policy"]
    assert runs["label"].tolist() == ["mixed", "admission_order"]


def test_keys_that_an_option_does_not_decide_stay_parameters(tmp_path: Path) -> None:
    choices = [{"scheduler": name} for name in ("mixed", "vllm")]
    configs = [run_of(name, block_size=size) for size in (16, 64) for name in ("mixed", "vllm")]
    configs.append({**configs[0], "scheduler": {**SCHEDULERS["mixed"], "watermark": 0.5}})
    runs = sweep(tmp_path, list(zip(configs, [*choices, *choices, choices[0]], strict=True)))
    assert runs.attrs["parameters"] == ["block_size", "scheduler", "scheduler.watermark"]
    assert len(set(runs["label"])) == 5


def test_labels_tell_exactly_the_configurations_apart(tmp_path: Path) -> None:
    """Whatever is swept together, runs have the same label if and only if they differ in load and seed at most."""
    rng = np.random.default_rng(0)
    axes: dict[str, list[Any]] = {
        "scheduler": list(SCHEDULERS),
        "rate": [5.0, 10.0],
        "seed": [0, 1],
        "block_size": [16, 64],
    }
    for case in range(20):
        chosen = {name: values if rng.random() < 0.6 else values[:1] for name, values in axes.items()}
        grid = [dict(zip(chosen, values, strict=True)) for values in itertools.product(*chosen.values())]
        runs = sweep(tmp_path / str(case), [(run_of(**each), {"scheduler": each["scheduler"]}) for each in grid])
        assert runs.attrs["load"] == ("arrival.rate" if len(chosen["rate"]) > 1 else None)
        assert runs.attrs["repeats"] is (len(chosen["seed"]) > 1)
        kept = [(each["scheduler"], each["block_size"]) for each in grid]
        if len(grid) > 1:
            assert len(set(zip(runs["label"], kept, strict=True))) == len(set(runs["label"])) == len(set(kept))
        table = configurations(runs)
        assert len(table) == len(grid) / len(chosen["seed"])
        assert set(table["num_runs"]) == {len(chosen["seed"])}


def test_an_experiment_labels_what_it_sets_in_all_groups(tmp_path: Path) -> None:
    a, b = run_of("mixed", block_size=16), run_of("vllm", block_size=64)
    choices = [{"experiment": name, "scheduler": name} for name in ("mixed", "vllm")]
    runs = sweep(tmp_path, list(zip([a, b], choices, strict=True)))
    assert runs.attrs["parameters"] == ["experiment"]


def test_loads_of_different_kinds_are_no_axis() -> None:
    rates = [Settings({"arrival.kind": "poisson", "arrival.rate": rate}, {}) for rate in (1, 2)]
    closed = [Settings({"arrival.kind": "closed_loop", "arrival.concurrency": count}, {}) for count in (8, 16)]
    assert find_swept(rates).load == "arrival.rate"
    assert find_swept(closed).load == "arrival.concurrency"
    both = find_swept([*rates, *closed])
    assert both.load is None and {"arrival.rate", "arrival.concurrency"} <= set(both.parameters)


def test_equal_runs_of_different_revisions_are_told_apart_and_others_by_their_names(tmp_path: Path) -> None:
    same = [write_run(tmp_path / name, run_of()) for name in "ab"]
    assert combine(same)["label"].tolist() == ["a", "b"]
    later = write_run(tmp_path / "c", run_of(), environment={"git_revision": "fedcba98", "git_dirty": True})
    assert combine([same[0], later])["label"].tolist() == ["01234567", "fedcba98+"]
    measured = [write_run(tmp_path / name, run_of(), simulated=False) for name in "de"]
    assert set(configurations(combine(measured))["label"]) == {"d", "e"}


def test_repetitions_have_the_mean_and_the_t_interval(tmp_path: Path) -> None:
    values = [50.0, 70.0, 60.0]
    folders = [
        write_run(
            tmp_path / str(seed), run_of(seed=seed), p99_ttft_ms=value, slo_met=seed < 2, verdict="stable",
            goodput_share=1.0 - 0.1 * seed, p99_ttft_ms_low=1.0,
        )
        for seed, value in enumerate(values)
    ]  # fmt: skip
    (row,) = configurations(combine(folders)).to_dict("records")
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert (row["p99_ttft_ms"], row["num_runs"]) == (60.0, 3)
    assert (row["p99_ttft_ms_low"], row["p99_ttft_ms_high"]) == pytest.approx((low, high))
    assert row["goodput_share_high"] == 1.0 and row["slo_met"] is False and row["verdict"] == "stable"
    assert row["seed"] is None and row["block_size"] == 16
    (single,) = configurations(combine(folders[:1])).to_dict("records")
    assert single["p99_ttft_ms_low"] == 1.0, "of a single run, what its summary says"


def test_t_intervals_hold_the_mean_as_often_as_they_say() -> None:
    rng = np.random.default_rng(1)
    intervals = [t_interval(pd.Series(rng.normal(100, 10, 4))) for _ in range(2000)]
    assert 0.93 < np.mean([low <= 100 <= high for low, high in intervals]) < 0.97
    assert all(math.isnan(end) for end in t_interval(pd.Series([1.0])))


def table_of_two_loads(tmp_path: Path) -> pd.DataFrame:
    folders = [
        write_run(
            tmp_path / f"{name}{rate}{seed}", run_of(name, rate, seed), {"scheduler": name}, slo_met=rate < 20,
            output_throughput=rate * (100 if name == "mixed" else 150) + seed, goodput_share=0.5, slo_ttft_ms=50.0,
            verdict="overloaded" if rate > 10 else "stable", preemptions=3, mean_kv_cache_usage=0.25,
            slo_ttft_attainment=1 - rate / 25,
        )
        for name in ("mixed", "vllm") for rate in (10.0, 20.0) for seed in (0, 1)
    ]  # fmt: skip
    return combine(folders)


def test_differences_are_from_the_baseline_at_the_same_load(tmp_path: Path) -> None:
    table = configurations(table_of_two_loads(tmp_path))
    found = with_differences(table, None, ["output_throughput"])
    assert found["output_throughput_vs_baseline_pct"].tolist() == pytest.approx([0, 0, 50, 50], abs=0.1)
    for baseline in ("vllm", 1, -1):
        found = with_differences(table, baseline, ["output_throughput"])
        assert found["output_throughput_vs_baseline_pct"].tolist() == pytest.approx([-33, -33, 0, 0], abs=0.4)
    for baseline in ("nobody", 2):
        with pytest.raises(
            ConfigError, match=f"report.baseline={baseline}: give an index below 2 or one of mixed; vllm"
        ):
            baseline_label(table, baseline)


def test_the_baseline_is_what_was_given_first(tmp_path: Path) -> None:
    folders = [store(tmp_path / str(size), {"block_size": size}) for size in (64, 32, 16)]
    (folders[0] / "summary.json").write_text("{}")
    for given, first in ((folders[1:], "32"), (folders[:0:-1], "16"), (folders, "32")):
        assert compare_folders(given).table.attrs["baseline"] == first, "the first that can be read"


def test_the_jobs_of_a_sweep_come_in_the_order_of_its_command(tmp_path: Path) -> None:
    for number, name in enumerate(("vllm", "mixed", "fair")):
        (tmp_path / name / ".hydra").mkdir(parents=True)
        (tmp_path / name / "failed.json").write_text("{}")
        (tmp_path / name / ".hydra" / "hydra.yaml").write_text(f"hydra:\n  job:\n    name: x\n    num: {number}\n")
    assert [folder.name for folder in job_folders(tmp_path)] == ["vllm", "mixed", "fair"]
    (tmp_path / "vllm" / ".hydra" / "hydra.yaml").unlink()
    (tmp_path / "vllm" / ".hydra" / "hydra.yaml").symlink_to("/dev/zero")
    assert [folder.name for folder in job_folders(tmp_path)] == ["vllm", "mixed", "fair"]


def test_without_a_load_the_name_of_an_overloaded_configuration_is_marked(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / name, run_of(name, 10.0, 0), {"scheduler": name}, verdict=verdict)
        for name, verdict in (("mixed", "overloaded"), ("vllm", "stable"))
    ]
    runs = combine(folders)
    stream = io.StringIO()
    table = with_differences(configurations(runs), None, ["output_throughput"])
    print_comparison(runs, table, Console(file=stream, width=80))
    assert "\nmixed × " in stream.getvalue() and "vllm ×" not in stream.getvalue()


def test_the_table_has_the_context_once_and_fits_80_columns(tmp_path: Path) -> None:
    runs = table_of_two_loads(tmp_path)
    table = with_differences(configurations(runs), "vllm", ["output_throughput", "p99_ttft_ms"])
    stream = io.StringIO()
    print_comparison(runs, table, Console(file=stream, width=80))
    text = stream.getvalue()
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert text.count("h100") == 1 and "model qwen3-8b" in text and "seeds 0, 1" in text and "revision 01234567" in text
    (low,) = (line.split() for line in lines if line.startswith("mixed"))
    assert low[:2] == ["mixed", "10"] and "-33%" in low and "pass" in low
    assert sum(line.count("20 ×") for line in lines) == 2 and text.count("fail") == 2
    assert "Δ: from vllm" in text and "×: overloaded" in text
    with_room = Console(file=io.StringIO(), width=120)
    with with_room.capture() as captured:
        print_comparison(runs, table, with_room)
    wide = captured.get()
    assert "in SLO" in wide and wide.count("60.0%") == 2 and wide.count("20.0%") == 2


def test_step_times_of_two_kinds_are_told_before_the_rows_and_on_the_page(tmp_path: Path) -> None:
    sources = ["step times: cost=roofline, roofline of the device's rates", "step times: measured kernels of a on b"]
    folders = [
        store(tmp_path / "in" / str(i), {"block_size": 16 * (i + 1)}, cost_source=source)
        for i, source in enumerate(sources)
    ]
    stream = io.StringIO()
    write_comparison(folders, tmp_path / "out", console=Console(file=stream, width=200))
    told = "1 of 2 configurations have step times from the roofline"
    assert told in "".join(stream.getvalue().splitlines()[:3])
    assert told in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    alike = io.StringIO()
    write_comparison(folders[:1], tmp_path / "one", console=Console(file=alike, width=200))
    assert "roofline, the others" not in alike.getvalue()


def test_what_a_comparison_writes_can_be_read_without_this_program(tmp_path: Path) -> None:
    configs = [run_of(name, seed=seed) for name in ("mixed", "vllm") for seed in (0, 1)]
    folders = [store(tmp_path / "in" / str(i), {**config, "block_size": 16}) for i, config in enumerate(configs)]
    write_comparison(folders, tmp_path / "out", baseline="mixed", console=Console(file=io.StringIO()))
    runs = pd.read_csv(tmp_path / "out" / "comparison.csv")
    assert runs["label"].tolist() == ["admission_order"] * 2 + ["mixed"] * 2 and runs["seed"].tolist() == [0, 1, 0, 1]
    assert {"cost_model", "device", "model", "revision", "arrival.rate"} <= set(runs)
    table = pd.read_csv(tmp_path / "out" / "configurations.csv")
    assert table["num_runs"].tolist() == [2, 2]
    assert table.set_index("label").loc["mixed", "p99_ttft_ms_vs_baseline_pct"] == 0
