"""Figures of a comparison: what is drawn over what, and that what they show is in the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from harness.config.plotting import AS_USUAL, PlotConfig
from harness.figures import write_comparison_charts
from harness.figures.charts.compare import draw_metrics
from harness.figures.charts.latency import draw_distributions
from harness.figures.charts.tradeoff import draw_frontier, frontier
from harness.figures.metrics import headline_metrics
from harness.figures.style import WIDTHS_IN
from tests.harness.figures.builders import PNG, RATES, curves_of, lines_of, table_of, texts

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
    paths = write_comparison_charts(table, curves_of(table), tmp_path, AS_USUAL)
    assert [path.stem for path in paths] == ["comparison_metrics", "comparison_frontier", "comparison_latency"]
    assert all(path.read_bytes().startswith(PNG) for path in paths)
    assert [path.stem for path in write_comparison_charts(table, {}, tmp_path, PlotConfig(x="policy"))] == [
        "comparison"
    ]


@pytest.mark.parametrize(
    ("case", "width"),
    [*((case, "page") for case in SWEEPS), *((case, "column") for case in ("many", "load and word", "word"))],
)
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
    assert write_comparison_charts(table, {}, tmp_path, AS_USUAL) == []


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


def test_the_tail_is_p99_or_the_highest_percentile_there_is() -> None:
    columns = ["p50_ttft_ms", "p90_ttft_ms", "p99_ttft_ms", "p99.9_ttft_ms"]
    table = pd.DataFrame([dict.fromkeys(columns, 5.0)])
    assert [shown.column for shown in headline_metrics(table)] == ["p99_ttft_ms"]
    assert [shown.column for shown in headline_metrics(table[columns[:2]])] == ["p90_ttft_ms"]
