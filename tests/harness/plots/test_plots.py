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
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from harness.config import MetricsConfig, SloConfig
from harness.config.plotting import AS_USUAL, PlotConfig
from harness.plots import style, write_comparison_plots, write_run_plots
from harness.plots.calibration import draw_calibration
from harness.plots.compare import draw_metrics
from harness.plots.labels import parameter_label, parameter_title
from harness.plots.latency import CURVE_PERCENTILES, curve_key, draw_distributions, draw_latency
from harness.plots.metrics import headline_metrics
from harness.plots.placement import Name, name_ends, name_points
from harness.plots.profile import draw_profile
from harness.plots.style import WIDTHS_IN, fitting, save
from harness.plots.timeline import draw_cache, draw_timeline
from harness.plots.tradeoff import draw_frontier, frontier
from harness.results.metrics import summarize
from harness.results.tables import RunResult
from simulator.profile.files import load_profile
from tests.harness.builders import ROOT
from tests.harness.made_up_results import ToyRequest, heavy_tailed_requests, run_toy_engine

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def warnings_are_errors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """matplotlib warns where labels do not fit or an axis cannot be drawn. Coarse pictures are written sooner."""
    monkeypatch.setattr(style, "_DPI", 60)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def summary_of(result: RunResult, **settings: Any) -> dict[str, Any]:
    return summarize(result, MetricsConfig(**settings))


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
    paths = write_run_plots(result, summary, tmp_path, AS_USUAL)
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
        figure = draw(result, summary, AS_USUAL)
        assert figure is not None
        assert word in texts(figure)
        assert "qwen3-8b on h100-80gb" in texts(figure) and "trace sharegpt" in texts(figure)


def test_latency_curves_pass_through_the_percentiles_of_the_summary() -> None:
    result = run_toy_engine(heavy_tailed_requests(300, 20))
    summary = summary_of(result, warmup=2.0)
    figure = draw_latency(result, summary, AS_USUAL)
    assert figure is not None
    for number, name in enumerate(("ttft", "tpot", "itl", "e2el")):
        for axes, shares in ((figure.axes[number], (0.5, 0.99)), (figure.axes[number + 4], (0.5, 0.01))):
            scale = 1e3 if figure.axes[number + 4].get_xlabel() == "s" else 1.0
            points = [np.asarray(line.get_xydata())[0] for line in axes.get_lines() if line.get_marker() == "o"]
            assert [point[0] * scale for point in points] == pytest.approx(
                [summary[f"p50_{name}_ms"], summary[f"p99_{name}_ms"]]
            )
            assert [point[1] for point in points] == pytest.approx(shares)
        assert figure.axes[number + 4].get_yscale() == "log"


def test_latency_figures_say_how_many_requests_are_within_the_slo() -> None:
    result = run_toy_engine(heavy_tailed_requests(300, 20))
    summary = summary_of(result, slo=SloConfig(ttft_ms=40.0))
    figure = draw_latency(result, summary, AS_USUAL)
    assert figure is not None
    counted = result.requests["ttft"].dropna()
    expected = f"{(counted <= 0.04).mean():.1%} within SLO 40 ms"
    assert expected in figure.axes[0].texts[-1].get_text()
    slo = [line for axes in figure.axes for line in axes.get_lines() if line.get_label() == "SLO"]
    assert [float(np.asarray(line.get_xdata())[0]) for line in slo] == pytest.approx([40.0] * 2)


def test_the_timeline_marks_the_last_arrival_and_the_limits() -> None:
    result = run_toy_engine(heavy_tailed_requests(400, 60), num_blocks=300)
    result = replace(result, meta={**result.meta, "config": {"max_num_seqs": int(result.steps["num_running"].max())}})
    figure = draw_timeline(result, summary_of(result), AS_USUAL)
    assert figure is not None
    marks = {label: [line for axes in figure.axes for line in axes.get_lines() if line.get_label() == label]
             for label in ("last arrival", "limit")}  # fmt: skip
    last = result.requests["arrival_time"].max()
    assert [line.get_xdata()[0] for line in marks["last arrival"]] == [last] * len(figure.axes)  # type: ignore[index]
    seats, pool = (float(np.asarray(line.get_ydata())[0]) for line in marks["limit"])
    assert (seats, pool) == (result.meta["config"]["max_num_seqs"], 100.0)
    assert f"of {seats:.0f} seats" in texts(figure)


def test_a_profile_is_drawn_by_the_shapes_of_its_operators() -> None:
    profile = load_profile(ROOT / "simulator/profiles/amd-epyc/tiny/tp1")
    for width in WIDTHS_IN:
        figure = draw_profile(profile, PlotConfig(width=width))  # type: ignore[arg-type]
        titles = [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()]
        assert titles[:3] == [
            "Operators by tokens",
            "Prefill attention, by context before",
            "Decode attention, by sequences",
        ]
        operators = profile.tables["tokens"]["operator"].unique()
        assert {text.get_text() for text in figure.axes[0].texts} >= set(operators)
        assert len(figure.axes[0].get_lines()) == len(operators)


def test_a_calibration_is_drawn_with_its_constants_and_errors_and_an_older_one_with_what_it_has() -> None:
    objective = {"before": 0.3, "after": 0.02, "evaluations": 50}
    older = {"cost": "roofline", "constants": {"a": 0.5, "b": 2.0}, "objective": objective, "fitted_on": {}}
    more = {"start": {"a": 0.8, "b": 1.0}, "limits": {"a": [0, 1], "b": [0, 4]}}
    more |= {"errors_before": {"ttft p99": -0.4}, "errors_after": {"ttft p99": 0.01}}
    figure = draw_calibration({**older, "objective": {**objective, **more}}, PlotConfig(width="column"))
    constants, errors = figure.axes
    at = [float(np.asarray(line.get_xdata())[0]) for line in constants.get_lines() if line.get_marker() == "o"]
    assert at == [0.8, 0.5, 0.25, 0.5]
    found = [float(np.asarray(line.get_xdata())[0]) for line in errors.get_lines() if line.get_marker() == "o"]
    assert found == pytest.approx([-40.0, 1.0])
    assert "30.00% before, 2.00% after" in errors.texts[0].get_text()
    assert [label.get_text() for label in draw_calibration(older, AS_USUAL).axes[1].get_yticklabels()] == ["all"]


def test_a_name_with_dollar_signs_is_no_formula(tmp_path: Path) -> None:
    result = run_toy_engine(heavy_tailed_requests(20, 3))
    assert write_run_plots(result, {**summary_of(result), "trace": "$$ $\\bad{$"}, tmp_path, AS_USUAL)
    table = table_of(["a $$"], "arrival.rate", **RATES, **{"a $$": ["$\\x{$", "y", "$\\x{$", "y"]})
    assert write_comparison_plots(table, curves_of(table), tmp_path, AS_USUAL)


def test_figures_are_written_in_every_format(tmp_path: Path) -> None:
    result = run_toy_engine(heavy_tailed_requests(60, 3))
    paths = write_run_plots(result, summary_of(result), tmp_path, PlotConfig(formats=("png", "svg", "pdf")))
    starts = {".png": PNG, ".svg": b"<?xml", ".pdf": b"%PDF"}
    assert len(paths) == 6 and all(path.read_bytes().startswith(starts[path.suffix]) for path in paths)


def test_timeline_areas_are_the_totals_of_the_tables() -> None:
    result = run_toy_engine(heavy_tailed_requests(400, 30), num_blocks=700)
    summary = summary_of(result)
    figure = draw_timeline(result, summary, AS_USUAL)
    assert figure is not None
    area = {}
    for axes in figure.axes:
        data = axes.patches[0].get_data()  # type: ignore[attr-defined]
        area[axes.get_title(loc="left").split(" (")[0]] = float(data.values @ np.diff(data.edges))
    steps = {name: result.steps[name].to_numpy() for name in result.steps}
    resumed = steps["num_prefill_seqs"].sum() - result.requests["first_token_time"].notna().sum()
    assert resumed == steps["num_preempted"].sum() > 0
    assert area["Output throughput"] == pytest.approx(summary["total_output_tokens"] - resumed)
    assert area["Prefill throughput, with recomputation"] == pytest.approx(steps["num_prefill_tokens"].sum())
    assert area["Preemptions"] == pytest.approx(summary["preemptions"])
    assert area["Running"] == pytest.approx(steps["num_running"] @ steps["duration"])
    assert area["Waiting"] == pytest.approx(steps["num_waiting"] @ steps["duration"])
    wasted = steps["num_used_blocks"] * 16 - steps["num_kv_tokens"] + steps["num_external_slots"]
    assert area["KV memory that holds no tokens"] == pytest.approx(100 * wasted @ steps["duration"] / 700 / 16)
    assert area["KV cache in use"] == pytest.approx(100 * steps["num_used_blocks"] @ steps["duration"] / 700)


def test_what_never_happened_is_said_instead_of_drawn() -> None:
    result = run_toy_engine(heavy_tailed_requests(20, 1))
    figure = draw_timeline(result, summary_of(result), AS_USUAL)
    assert figure is not None
    assert "no preemptions" in texts(figure) and "no waiting requests" in texts(figure)
    assert len(figure.axes) == 5
    older = replace(result, steps=result.steps.drop(columns=["num_kv_tokens", "num_reserved_slots"]))
    figure = draw_timeline(older, summary_of(older), AS_USUAL)
    assert figure is not None and len(figure.axes) == 4, "an earlier version did not record what slots are used for"


def table_of(parameters: list[str], load: str | None = None, **columns: list[Any]) -> pd.DataFrame:
    """Configurations with made-up metrics: more of the first column gives more throughput at more latency."""
    count = len(next(iter(columns.values())))
    rng = np.random.default_rng(count)
    throughput = 1000 * np.sqrt(np.arange(1, count + 1)) * rng.uniform(0.8, 1.2, count)
    made: dict[str, Any] = {
        "run": [f"run{number}" for number in range(count)],
        "status": "complete",
        "simulated": True,
        "num_runs": 1,
        "output_throughput": throughput,
        "preemptions": rng.integers(0, 5, count),
        "mean_kv_cache_usage": rng.uniform(0.1, 1, count),
        "prefix_cache_hit_rate": 0.0,
    }
    for name in ("ttft", "tpot"):
        made |= {f"median_{name}_ms": throughput / 50, f"p99_{name}_ms": throughput / 10 * rng.uniform(0.5, 2, count)}
    table = pd.DataFrame({**made, **columns})
    table["label"] = [parameter_label(row, parameters) for row in table.to_dict("records")]
    fixed = {"model": "qwen3-8b", "device": "h100", "seed": "0"}
    table.attrs.update(parameters=parameters, load=load, repeats=False, fixed=fixed, num_failed=0, num_interrupted=0)
    return table


def curves_of(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    curve = np.linspace(0.01, 5, len(CURVE_PERCENTILES))
    rows = table.to_dict("records")
    return {
        curve_key(row, table.attrs["load"]): {"ttft": curve, "tpot": curve / 100, "e2el": curve * 3} for row in rows
    }


RATES = {"arrival.rate": [1.5, 2.5] * 2}
SWEEPS: dict[str, tuple[pd.DataFrame, str]] = {
    "one number": (table_of(["block_size"], block_size=[16, 64, 256]), "Metrics over block_size"),
    "two numbers": (
        table_of(["block_size", "max_num_seqs"], block_size=[16, 64] * 3, max_num_seqs=[32, 32, 64, 64, 128, 128]),
        "Metrics over max_num_seqs",
    ),
    "load and word": (table_of(["policy"], "arrival.rate", **RATES, policy=["a", "a", "b", "b"]), "over request rate"),
    "load alone": (table_of([], "arrival.rate", **RATES), "Metrics over request rate"),
    "word": (table_of(["policy"], policy=["a", "b"]), "Configurations compared"),
    "switch": (table_of(["caching"], caching=[True, False]), "Configurations compared"),
    "number left open": (table_of(["num_blocks"], num_blocks=[None, 500.0]), "Configurations compared"),
    "three words": (
        table_of(["a", "b", "c"], a=["x", "y"] * 4, b=["u", "u", "v", "v"] * 2, c=["p"] * 4 + ["q"] * 4),
        "over a",
    ),
    "many": (
        table_of(["a", "b", "c"], a=list(range(100)) * 2, b=[1] * 100 + [2] * 100, c=[5.5, 6.5] * 100),
        "over a",
    ),
    "nothing": (table_of([], seed=[0, 0, 0]), "Configurations compared"),
    "too many lines": (table_of(["a", "b"], a=list(range(20)) * 2, b=[*"abcdefghij"] * 4), "Configurations compared"),
}


def test_a_comparison_has_three_figures(tmp_path: Path) -> None:
    table, _ = SWEEPS["load and word"]
    paths = write_comparison_plots(table, curves_of(table), tmp_path, AS_USUAL)
    assert [path.stem for path in paths] == ["comparison_metrics", "comparison_frontier", "comparison_latency"]
    assert all(path.read_bytes().startswith(PNG) for path in paths)
    assert [path.stem for path in write_comparison_plots(table, {}, tmp_path, PlotConfig(x="policy"))] == ["comparison"]


@pytest.mark.parametrize("width", ["page", "column"])
@pytest.mark.parametrize("case", SWEEPS)
def test_a_sweep_is_drawn_by_what_was_swept(case: str, width: Any) -> None:
    table, title = SWEEPS[case]
    plot = PlotConfig(width=width)
    assert draw_frontier(table, plot) is not None and draw_distributions(table, curves_of(table), plot) is not None
    figure = draw_metrics(table, plot)
    assert figure is not None
    assert title in figure.texts[0].get_text().replace("\n", " ")
    assert f"{len(table)} runs, all SIMULATED" in texts(figure)
    assert "Prefix cache hits" not in texts(figure), "a metric that is zero everywhere has no panel"
    assert figure.get_size_inches()[0] == WIDTHS_IN[width]


def lines_of(axes: Axes) -> list[np.ndarray]:
    drawn = [np.asarray(line.get_xydata()) for line in axes.get_lines() if line.get_label() != "SLO"]
    return [points for points in drawn if len(points)]


def test_lines_show_the_values_of_the_table() -> None:
    table = table_of(["block_size"], block_size=[256, 16, 64])
    figure = draw_metrics(table, AS_USUAL)
    assert figure is not None
    axes = next(axes for axes in figure.axes if axes.get_title(loc="left") == "Mean KV use")
    expected = table.sort_values("block_size")[["block_size", "mean_kv_cache_usage"]].to_numpy() * [1, 100]
    np.testing.assert_allclose(lines_of(axes)[0], expected)


def test_a_configuration_is_one_curve_over_the_load_with_its_name_at_the_end() -> None:
    table = table_of(["policy"], "arrival.rate", **RATES, policy=["a", "a", "b", "b"])
    table = table.assign(p99_ttft_ms_low=1.0, p99_ttft_ms_high=9e3, verdict=["stable", "overloaded"] * 2)
    figure = draw_metrics(table, PlotConfig(labels={"a": "ours"}))
    assert figure is not None and "×: overloaded" in texts(figure) and "bars: 95% interval" in texts(figure)
    axes = figure.axes[0]
    curves, crosses = lines_of(axes)[::2], lines_of(axes)[1::2]
    assert [curve[:, 0].tolist() for curve in curves] == [[1.5, 2.5]] * 2
    assert [cross[:, 0].tolist() for cross in crosses] == [[2.5]] * 2
    assert {text.get_text() for text in axes.texts} >= {"ours", "b"}
    assert len(axes.collections) == 2, "intervals of each curve"


def test_three_swept_keys_have_facets_and_the_axes_can_be_chosen() -> None:
    table, _ = SWEEPS["three words"]
    figure = draw_metrics(table, PlotConfig(y=("p99_ttft_ms",), x="b", color="c", facet="a"))
    assert figure is not None
    assert [axes.texts[0].get_text() for axes in figure.axes] == ["a x", "a y"]
    assert figure.axes[0].get_xlabel() == "b"
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["u", "v"]
    log = draw_metrics(table, PlotConfig(log="y"))
    assert log is not None and {axes.get_yscale() for axes in log.axes} == {"log"}


def test_slo_lines_are_drawn_at_the_percentile_that_they_are_about() -> None:
    table = table_of(["policy"], "arrival.rate", **RATES, policy=["a", "a", "b", "b"])
    table = table.assign(slo_ttft_ms=500.0, slo_tpot_ms=None, slo_percentile=99.0)
    figure, front = draw_metrics(table, AS_USUAL), draw_frontier(table, AS_USUAL)
    latencies = draw_distributions(table, curves_of(table), AS_USUAL)
    assert figure is not None and front is not None and latencies is not None
    with_line = {axes.get_title(loc="left") for axes in figure.axes if "SLO 500 ms" in _notes(axes)}
    assert with_line == {"p99 TTFT"}
    assert [("SLO 500 ms" in _notes(axes)) for axes in front.axes] == [False, True]
    slo = [[line for line in axes.get_lines() if line.get_label() == "SLO"] for axes in latencies.axes]
    assert [len(lines) for lines in slo] == [1, 0, 0, 1, 0, 0], "distribution and tail of TTFT"


def _notes(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_simulated_and_measured_runs_are_told_apart_and_never_joined() -> None:
    table = table_of(["rate"], rate=[1, 2, 1, 2]).assign(simulated=[True, True, False, False])
    figure = draw_metrics(table, AS_USUAL)
    assert figure is not None
    assert "○ ┄ SIMULATED, ■ — MEASURED" in texts(figure)
    axes = next(axes for axes in figure.axes if axes.get_title(loc="left") == "Output throughput")
    hollow, filled = sorted(axes.get_lines(), key=lambda line: line.get_marker() != "o")
    assert (hollow.get_marker(), hollow.get_linestyle(), hollow.get_markerfacecolor()) == ("o", "--", "white")
    assert (filled.get_marker(), filled.get_linestyle()) == ("s", "-")
    assert list(np.asarray(filled.get_ydata())) == list(table["output_throughput"][2:])


def test_failed_and_interrupted_runs_are_counted() -> None:
    table = table_of(["rate"], rate=[1, 3])
    table.attrs.update(num_failed=1, num_interrupted=1)
    for figure in (
        draw_metrics(table, AS_USUAL),
        draw_frontier(table, AS_USUAL),
        draw_distributions(table, curves_of(table), AS_USUAL),
    ):
        assert figure is not None
        assert "2 runs" in texts(figure)
        assert "1 failed, not drawn" in texts(figure) and "1 interrupted before the end" in texts(figure)


def test_runs_without_any_result_give_no_figure(tmp_path: Path) -> None:
    table = table_of(["rate"], rate=[1, 2])
    table[["output_throughput", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms"]] = np.nan
    table[["preemptions", "mean_kv_cache_usage"]] = 0
    assert write_comparison_plots(table, {}, tmp_path, AS_USUAL) == []


def test_frontier_keeps_what_nobody_of_its_kind_beats() -> None:
    throughput = np.array([10.0, 20.0, 20.0, 30.0, 5.0, np.nan, 40.0, 15.0, 20.0])
    latency = np.array([1.0, 2.0, 3.0, 5.0, 2.0, 0.1, np.nan, 0.5, 2.0])
    kinds = np.array([True, True, True, True, True, True, True, False, True])
    assert np.flatnonzero(frontier(throughput, latency, kinds)).tolist() == [0, 1, 3, 7]


def test_the_frontier_is_of_tokens_per_gpu_against_tokens_per_user_and_names_its_points() -> None:
    table = table_of(["policy"], policy=["a", "b", "c"]).assign(tensor_parallel_size=[1, 2, 2])
    figure = draw_frontier(table, AS_USUAL)
    assert figure is not None
    x, y = np.concatenate(lines_of(figure.axes[0])).T
    assert set(y) == set(table["output_throughput"] / [1, 2, 2])
    assert set(x) == set(1000 / table["median_tpot_ms"])
    for axes in figure.axes:
        assert {text.get_text() for text in axes.texts} >= {"a", "b", "c"}


@pytest.mark.parametrize("seed", range(3))
def test_names_do_not_cover_each_other(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.uniform(0, 1, (14, 2))
    words = [f"name {number}" for number in range(len(points))]
    for at_points in (True, False):
        figure, (axes,) = fitting("t", "s", 1, AS_USUAL, 3.0)
        axes.plot(*points.T, "o")
        figure.draw_without_rendering()
        if at_points:
            names = [[Name(x, y, word, "k")] for (x, y), word in zip(points, words, strict=True)]
            left_out = name_points(axes, names, [point[None] for point in points], 6.5)
        else:
            name_ends(axes, [Name(1.0, y / 9, word, "k") for (_, y), word in zip(points, words, strict=True)], 6.5)
            left_out = []
        placed = {text.get_text() for text in axes.texts if text.get_text()}
        assert placed | set(left_out) == set(words) and len(placed) > 7
        figure.draw_without_rendering()
        boxes = [Text.get_window_extent(text).padded(-1) for text in axes.texts]
        for number, box in enumerate(boxes):
            assert not any(box.overlaps(other) for other in boxes[:number])


def test_labels_are_short_and_unambiguous() -> None:
    parameters = ["trace.kind", "arrival.rate", "prompt.mean", "output.mean", "num_blocks"]
    row = {"run": "x", "trace.kind": "azure", "arrival.rate": 2.0, "prompt.mean": 1e4, "output.mean": 0.125}
    assert parameter_title(parameters) == "trace · rate · prompt.mean · output.mean · num_blocks"
    assert parameter_label({**row, "num_blocks": None}, parameters) == "azure · 2 · 10,000 · 0.125 · num_blocks=unset"
    assert parameter_label(row, []) == "x"


def test_the_tail_is_p99_or_the_highest_percentile_there_is() -> None:
    columns = ["p50_ttft_ms", "p90_ttft_ms", "p99_ttft_ms", "p99.9_ttft_ms"]
    table = pd.DataFrame([dict.fromkeys(columns, 5.0)])
    assert [shown.column for shown in headline_metrics(table)] == ["p99_ttft_ms"]
    assert [shown.column for shown in headline_metrics(table[columns[:2]])] == ["p90_ttft_ms"]


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
