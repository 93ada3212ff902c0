"""Figures: which are drawn, that what they show is in the tables, and that no made-up case breaks or warns."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from harness.config import MetricsConfig
from harness.plots import write_comparison_plots, write_run_plots
from harness.plots.compare import draw_metrics, headline_metrics, parameter_label, parameter_title
from harness.plots.latency import CURVE_PERCENTILES, draw_latency
from harness.plots.style import save
from harness.plots.timeline import draw_cache, draw_timeline
from harness.plots.tradeoff import draw_curves, draw_pareto, frontier
from harness.results.metrics import summarize
from harness.results.tables import RunResult
from tests.harness.builders import ROOT
from tests.harness.made_up_results import ToyRequest, heavy_tailed_requests, run_toy_engine

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def warnings_are_errors() -> Iterator[None]:
    """matplotlib warns where labels do not fit or an axis cannot be drawn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def summary_of(result: RunResult, **settings: float) -> dict[str, Any]:
    return summarize(result, MetricsConfig(**settings))  # type: ignore[arg-type]


def texts(figure: Figure) -> str:
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    return " ".join([*(text.get_text() for text in figure.texts), *titles]).replace("\n", " ")


CASES = {
    "saturated": (heavy_tailed_requests(800, 60, hit_share=0.4), {"num_blocks": 700}, {"latency", "timeline", "cache"}),
    "light": (heavy_tailed_requests(60, 3), {}, {"latency", "timeline"}),
    "cut short": (heavy_tailed_requests(200, 20), {"until_s": 5.0}, {"latency", "timeline"}),
    "nothing finished": (heavy_tailed_requests(20, 50), {"until_s": 0.03}, {"timeline"}),
    "two tokens": ([ToyRequest(0.0, 100, 2)], {}, {"latency", "timeline"}),
    "one token": ([ToyRequest(0.2, 100, 1)], {}, {"latency", "timeline"}),
    "all rejected": ([ToyRequest(0.2, 10**9, 1)], {}, set()),
    "empty": ([], {}, set()),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("settings", [{}, {"warmup": 1.0, "drain": 1.0}])
def test_a_run_gives_the_figures_it_has_data_for(tmp_path: Path, case: str, settings: dict[str, float]) -> None:
    requests, engine, expected = CASES[case]
    requests = [replace(request, tokens=[]) for request in requests]
    result = run_toy_engine(requests, **engine)  # type: ignore[arg-type]
    summary = summary_of(result, **settings)
    paths = write_run_plots(result, summary, tmp_path)
    if settings and not summary["completed"]:
        expected = expected - {"latency"}
    assert {path.stem for path in paths} == expected
    assert sorted(tmp_path.iterdir()) == sorted(paths), "no temporary file is left"
    assert all(path.read_bytes().startswith(PNG) for path in paths)


@pytest.mark.parametrize(("simulated", "word"), [(True, "SIMULATED"), (False, "MEASURED (gpu)")])
def test_every_figure_of_a_run_says_whether_it_was_simulated(simulated: bool, word: str) -> None:
    result = run_toy_engine(heavy_tailed_requests(100, 20, hit_share=0.5))
    summary = {**summary_of(result), "simulated": simulated, "engine": "sim" if simulated else "gpu"}
    for draw in (draw_latency, draw_timeline, draw_cache):
        figure = draw(result, summary)
        assert figure is not None
        assert word in texts(figure)
        assert "qwen3-8b on h100-80gb" in texts(figure) and "trace sharegpt" in texts(figure)


def test_latency_curves_pass_through_the_percentiles_of_the_summary() -> None:
    result = run_toy_engine(heavy_tailed_requests(300, 20))
    summary = summary_of(result, warmup=2.0)
    figure = draw_latency(result, summary)
    assert figure is not None
    for axes, name in zip(figure.axes, ("ttft", "tpot", "itl", "e2el"), strict=True):
        scale = 1e3 if axes.get_xlabel() == "s" else 1.0
        _, p50, p99 = axes.get_lines()
        assert np.asarray(p50.get_xdata())[0] * scale == pytest.approx(summary[f"p50_{name}_ms"])
        assert np.asarray(p99.get_xdata())[0] * scale == pytest.approx(summary[f"p99_{name}_ms"])


def test_timeline_areas_are_the_totals_of_the_tables() -> None:
    result = run_toy_engine(heavy_tailed_requests(400, 30), num_blocks=700)
    summary = summary_of(result)
    figure = draw_timeline(result, summary)
    assert figure is not None
    area = {}
    for axes in figure.axes:
        data = axes.patches[0].get_data()  # type: ignore[attr-defined]
        area[axes.get_title(loc="left").split(" (")[0]] = float(data.values @ np.diff(data.edges))
    steps = {name: result.steps[name].to_numpy() for name in result.steps}
    resumed = steps["num_prefill_seqs"].sum() - result.requests["first_token_time"].notna().sum()
    assert resumed == steps["num_preempted"].sum() > 0
    assert area["Output throughput"] == pytest.approx(summary["total_output_tokens"] - resumed)
    assert area["Prefill throughput, recomputation included"] == pytest.approx(steps["num_prefill_tokens"].sum())
    assert area["Preemptions"] == pytest.approx(summary["preemptions"])
    assert area["Running"] == pytest.approx(steps["num_running"] @ steps["duration"])
    assert area["Waiting"] == pytest.approx(steps["num_waiting"] @ steps["duration"])
    wasted = steps["num_used_blocks"] * 16 - steps["num_kv_tokens"] + steps["num_external_slots"]
    assert area["KV memory that holds no tokens"] == pytest.approx(100 * wasted @ steps["duration"] / 700 / 16)
    assert area["KV cache in use"] == pytest.approx(100 * steps["num_used_blocks"] @ steps["duration"] / 700)


def test_what_never_happened_is_said_instead_of_drawn() -> None:
    result = run_toy_engine(heavy_tailed_requests(20, 1))
    figure = draw_timeline(result, summary_of(result))
    assert figure is not None
    assert "no preemptions" in texts(figure) and "no waiting requests" in texts(figure)
    assert len(figure.axes) == 5
    older = replace(result, steps=result.steps.drop(columns=["num_kv_tokens", "num_reserved_slots"]))
    figure = draw_timeline(older, summary_of(older))
    assert figure is not None and len(figure.axes) == 4, "an earlier version did not record what slots are used for"


def combined(**columns: list[Any]) -> pd.DataFrame:
    """A combined table with made-up metrics: more of the first column gives more throughput at more latency."""
    count = len(next(iter(columns.values())))
    rng = np.random.default_rng(count)
    throughput = 1000 * np.sqrt(np.arange(1, count + 1)) * rng.uniform(0.8, 1.2, count)
    table: dict[str, Any] = {
        "run": [f"run{number}" for number in range(count)],
        "status": "complete",
        "simulated": True,
        "model": "qwen3-8b",
        "output_throughput": throughput,
        "preemptions": rng.integers(0, 5, count),
        "mean_kv_cache_usage": rng.uniform(0.1, 1, count),
        "prefix_cache_hit_rate": 0.0,
    }
    for name in ("ttft", "tpot"):
        table |= {f"median_{name}_ms": throughput / 50, f"p99_{name}_ms": throughput / 10 * rng.uniform(0.5, 2, count)}
    return pd.DataFrame({**table, **columns})


def curves_of(runs: pd.DataFrame) -> dict[str, dict[str, Any]]:
    curve = np.linspace(0.01, 5, len(CURVE_PERCENTILES))
    return {run: {"ttft": curve, "tpot": curve / 100, "e2el": curve * 3} for run in runs["run"]}


SWEEPS: dict[str, tuple[pd.DataFrame, list[str], str]] = {
    "one number": (combined(block_size=[16, 64, 256]), ["block_size"], "Metrics by block_size"),
    "two numbers": (
        combined(block_size=[16, 64] * 3, max_num_seqs=[32, 32, 64, 64, 128, 128]),
        ["block_size", "max_num_seqs"],
        "Metrics by max_num_seqs and block_size",
    ),
    "number and word": (
        combined(**{"arrival.rate": [1.5, 2.5, 1.5, 2.5]}, **{"scheduler.policy": ["a", "a", "b", "b"]}),
        ["arrival.rate", "scheduler.policy"],
        "Metrics by rate and policy",
    ),
    "word": (combined(**{"scheduler.policy": ["a", "b"]}), ["scheduler.policy"], "Runs compared"),
    "switch": (combined(caching=[True, False]), ["caching"], "Runs compared"),
    "number left open": (combined(num_blocks=[None, 500.0]), ["num_blocks"], "Runs compared"),
    "three": (
        combined(a=list(range(200)), b=[1, 2] * 100, c=[5.5] * 100 + [6.5] * 100),
        ["a", "b", "c"],
        "Runs compared",
    ),
    "nothing": (combined(seed=[0, 0, 0]), [], "Runs compared"),
    "too many lines": (combined(a=list(range(20)) * 2, b=list(range(40))), ["a", "b"], "Runs compared"),
}


@pytest.mark.parametrize("case", SWEEPS)
def test_a_sweep_is_drawn_by_what_was_swept(tmp_path: Path, case: str) -> None:
    runs, parameters, title = SWEEPS[case]
    paths = write_comparison_plots(runs, parameters, curves_of(runs), tmp_path)
    assert [path.stem for path in paths] == ["comparison_metrics", "comparison_pareto", "comparison_cdfs"]
    assert all(path.read_bytes().startswith(PNG) for path in paths)
    figure = draw_metrics(runs, parameters)
    assert figure is not None
    assert title == figure.texts[0].get_text()
    assert f"{len(runs)} runs, all SIMULATED" in texts(figure)
    assert "Prefix cache hits" not in texts(figure), "a metric that is zero everywhere has no panel"


def test_lines_show_the_values_of_the_table(tmp_path: Path) -> None:
    runs = combined(block_size=[256, 16, 64])
    figure = draw_metrics(runs, ["block_size"])
    assert figure is not None
    axes = next(axes for axes in figure.axes if axes.get_title(loc="left") == "Mean KV use")
    drawn = axes.get_lines()[0].get_xydata()
    expected = runs.sort_values("block_size")[["block_size", "mean_kv_cache_usage"]].to_numpy() * [1, 100]
    np.testing.assert_allclose(np.asarray(drawn), expected)


def test_simulated_and_measured_runs_are_told_apart_and_never_joined() -> None:
    runs = combined(rate=[1, 2, 1, 2])
    runs["simulated"] = [True, True, False, False]
    figure = draw_metrics(runs, ["rate"])
    assert figure is not None
    assert "○ ┄ SIMULATED, ■ — MEASURED" in texts(figure)
    hollow, filled = sorted(figure.axes[0].get_lines(), key=lambda line: line.get_marker() != "o")
    assert (hollow.get_marker(), hollow.get_linestyle(), hollow.get_markerfacecolor()) == ("o", "--", "white")
    assert (filled.get_marker(), filled.get_linestyle()) == ("s", "-")
    assert list(np.asarray(filled.get_ydata())) == list(runs["output_throughput"][2:])


def test_failed_and_interrupted_runs_are_counted() -> None:
    runs = combined(rate=[1, 2, 3])
    runs["status"] = ["complete", "failed", "interrupted"]
    runs["simulated"] = [True, None, True]
    runs.loc[1, ["output_throughput", "p99_ttft_ms"]] = np.nan
    for figure in (
        draw_metrics(runs, ["rate"]),
        draw_pareto(runs, ["rate"]),
        draw_curves(runs, ["rate"], curves_of(runs)),
    ):
        assert figure is not None
        assert "2 runs" in texts(figure)
        assert "1 failed, not drawn" in texts(figure) and "1 interrupted before the end" in texts(figure)


def test_runs_without_any_result_give_no_figure(tmp_path: Path) -> None:
    runs = combined(rate=[1, 2])
    runs[["output_throughput", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms"]] = np.nan
    runs[["preemptions", "mean_kv_cache_usage"]] = 0
    assert write_comparison_plots(runs, ["rate"], {"run0": {}, "run1": {}}, tmp_path) == []


def test_frontier_keeps_what_nobody_of_its_kind_beats() -> None:
    throughput = np.array([10.0, 20.0, 20.0, 30.0, 5.0, np.nan, 40.0, 15.0, 20.0])
    latency = np.array([1.0, 2.0, 3.0, 5.0, 2.0, 0.1, np.nan, 0.5, 2.0])
    kinds = np.array([True, True, True, True, True, True, True, False, True])
    assert np.flatnonzero(frontier(throughput, latency, kinds)).tolist() == [0, 1, 3, 7]


def test_labels_are_short_and_unambiguous() -> None:
    parameters = ["trace.kind", "arrival.rate", "prompt.mean", "output.mean", "num_blocks"]
    row = {"run": "x", "trace.kind": "azure", "arrival.rate": 2.0, "prompt.mean": 1e4, "output.mean": 0.125}
    assert parameter_title(parameters) == "trace · rate · prompt.mean · output.mean · num_blocks"
    assert parameter_label({**row, "num_blocks": None}, parameters) == "azure · 2 · 10,000 · 0.125 · unset"
    assert parameter_label(row, []) == "x"


def test_the_tail_is_p99_or_the_highest_percentile_there_is() -> None:
    columns = ["p50_ttft_ms", "p90_ttft_ms", "p99_ttft_ms", "p99.9_ttft_ms"]
    assert [metric.column for metric in headline_metrics(columns)] == ["p99_ttft_ms"]
    assert [metric.column for metric in headline_metrics(columns[:2])] == ["p90_ttft_ms"]


def test_a_figure_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def disk_full(self: Figure, path: Path) -> None:
        path.write_bytes(PNG)
        raise OSError("no space left on device")

    monkeypatch.setattr(Figure, "savefig", disk_full)
    with pytest.raises(OSError, match="no space"):
        save(Figure(), tmp_path / "x.png")
    assert list(tmp_path.iterdir()) == []


def test_matplotlib_is_not_imported_before_a_figure_is_drawn() -> None:
    code = "import sys, harness.plots, harness.sweeps.sweep, harness.runs.run\n"
    code += "sys.exit('matplotlib' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
