"""Figures of a comparison: what is drawn over what, and that what they show is in the table."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from harness.config.schema.tasks.plotting import AS_USUAL, PlotConfig
from harness.figures import write_comparison_charts
from harness.figures.charts.compare import metrics_chart, metrics_page_chart
from harness.figures.charts.latency import distributions_chart
from harness.figures.charts.tradeoff import frontier, frontier_chart
from harness.figures.drawing import draw
from harness.figures.drawn_metrics import by_throughput, headline_metrics
from tests.harness.figures.builders import PNG, RATES, curves_of, panel_of, table_of, texts
from tests.selection import few

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


@pytest.mark.long
def test_a_comparison_has_three_figures(tmp_path: Path) -> None:
    table, _ = SWEEPS["load and word"]
    paths = write_comparison_charts(table, curves_of(table), tmp_path, AS_USUAL)
    assert [path.stem for path in paths] == ["comparison_metrics", "comparison_frontier", "comparison_latency"]
    assert all(path.read_bytes().startswith(PNG) for path in paths)
    (chosen,) = write_comparison_charts(table, {}, tmp_path, PlotConfig(x="policy", y=("p99_ttft_ms",)))
    assert chosen.stem == "comparison"


@pytest.mark.parametrize("case", SWEEPS)
@pytest.mark.sample(5)
def test_a_sweep_is_drawn_by_what_was_swept(case: str) -> None:
    table, title = SWEEPS[case]
    for width in ("page", "column"):
        plot = PlotConfig(width=width)
        assert frontier_chart(table, plot) and distributions_chart(table, curves_of(table), plot)
        chart = metrics_chart(table, plot)
        assert chart is not None
        assert title in chart.title and f"{len(table)} runs, all SIMULATED" in texts(chart)
        assert "Prefix cache hits" not in texts(chart), "a metric that is zero everywhere has no panel"
    page = metrics_page_chart(table)
    assert page is not None and len(page.panels) == 7, "all that are known"


@pytest.mark.long
@pytest.mark.parametrize("case", few(sorted(SWEEPS, key=lambda case: case != "many")))
def test_comparisons_are_drawn_at_both_widths(case: str) -> None:
    for width in ("page", "column"):
        chart = metrics_chart(SWEEPS[case][0], plot := PlotConfig(width=width))
        assert chart is not None
        draw(chart, plot).draw_without_rendering()


def test_lines_show_the_values_of_the_table() -> None:
    table = table_of(["block_size"], block_size=[256, 16, 64])
    chart = metrics_chart(table, AS_USUAL)
    assert chart is not None
    (curve,) = panel_of(chart, "Mean KV use").series
    expected = table.sort_values("block_size")[["block_size", "mean_kv_cache_usage"]].to_numpy() * [1, 100]
    np.testing.assert_allclose(np.column_stack((curve.x, curve.y)), expected)


def test_a_configuration_is_one_curve_over_the_load_with_its_name_at_the_end() -> None:
    table = table_of(["policy"], "arrival.rate", **RATES, policy=["a", "a", "b", "b"])
    table = table.assign(p99_ttft_ms_low=1.0, p99_ttft_ms_high=9e3, verdict=["stable", "overloaded"] * 2)
    plot = PlotConfig(labels={"a": "ours"})
    chart = metrics_chart(table, plot)
    assert chart is not None and "×: overloaded" in texts(chart) and "bars: 95% interval" in texts(chart)
    shown = [(series.name, series.marker, list(series.x)) for series in chart.panels[0].series]
    curve, cross = [1.5, 2.5], [2.5]
    assert shown == [("a", "o", curve), ("a", "x", cross), ("b", "o", curve), ("b", "x", cross)]
    axes = draw(chart, plot).axes[0]
    assert {text.get_text() for text in axes.texts} >= {"ours", "b"}
    assert len(axes.collections) == 2, "intervals of each curve"


def test_three_swept_keys_have_facets_and_the_axes_can_be_chosen() -> None:
    table, _ = SWEEPS["three words"]
    chart = metrics_chart(table, PlotConfig(y=("p99_ttft_ms",), x="b", color="c", facet="a"))
    assert chart is not None
    assert [panel.facts for panel in chart.panels] == ["a x", "a y"]
    assert chart.panels[0].x.label == "b" and chart.panels[0].x.names == ("u", "v")
    log = metrics_chart(table, PlotConfig(log="y"))
    assert log is not None and all(panel.y.log for panel in log.panels)


def test_slo_lines_are_drawn_at_the_percentile_that_they_are_about() -> None:
    table = table_of(["policy"], "arrival.rate", **RATES, policy=["a", "a", "b", "b"])
    table = table.assign(slo_ttft_ms=500.0, slo_tpot_ms=None, slo_percentile=99.0)
    latencies = distributions_chart(table, curves_of(table), AS_USUAL)
    for chart, expected in (
        (metrics_chart(table, AS_USUAL), {"p99 TTFT"}),
        (frontier_chart(table, AS_USUAL), {"p99 TTFT"}),
        (latencies, {"TTFT", "Tail of TTFT"}),
    ):
        assert chart is not None
        marked = [panel for panel in chart.panels if panel.marks]
        assert {panel.title for panel in marked} == expected
        names = {text.get_text() for axes in draw(chart, AS_USUAL).axes for text in axes.texts}
        assert names & {"SLO 500 ms", "SLO 0.5 s"}


def test_simulated_and_measured_runs_are_told_apart_and_never_joined() -> None:
    table = table_of(["rate"], rate=[1, 2, 1, 2]).assign(simulated=[True, True, False, False])
    chart = metrics_chart(table, AS_USUAL)
    assert chart is not None
    assert "○ ┄ SIMULATED, ■ — MEASURED" in texts(chart)
    simulated, measured = panel_of(chart, "Output throughput").series
    assert list(measured.y) == list(table["output_throughput"][2:])
    axes = next(axes for axes in draw(chart, AS_USUAL).axes if axes.get_title(loc="left") == "Output throughput")
    hollow, filled = sorted(axes.get_lines(), key=lambda line: line.get_marker() != "o")
    assert (hollow.get_marker(), hollow.get_linestyle(), hollow.get_markerfacecolor()) == ("o", "--", "white")
    assert (filled.get_marker(), filled.get_linestyle()) == ("s", "-")


def test_failed_and_interrupted_runs_are_counted() -> None:
    table = table_of(["rate"], rate=[1, 3])
    table.attrs.update(num_failed=1, num_interrupted=1)
    for chart in (
        metrics_chart(table, AS_USUAL),
        frontier_chart(table, AS_USUAL),
        distributions_chart(table, curves_of(table), AS_USUAL),
    ):
        assert chart is not None
        assert "2 runs" in texts(chart)
        assert "1 failed, not drawn" in texts(chart) and "1 interrupted before the end" in texts(chart)


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
    chart = frontier_chart(table, AS_USUAL)
    assert chart is not None
    points = [series for series in chart.panels[0].series if series.name != "frontier"]
    assert {series.y[0] for series in points} == set(table["output_throughput"] / [1, 2, 2])
    assert {series.x[0] for series in points} == set(1000 / table["median_tpot_ms"])
    for axes in draw(chart, AS_USUAL).axes:
        assert {text.get_text() for text in axes.texts} >= {"a", "b", "c"}


def test_there_is_no_frontier_where_all_have_the_same_throughput() -> None:
    table = table_of(["policy"], policy=["a", "b"]).assign(output_throughput=[973.0, 960.0])
    assert frontier_chart(table, AS_USUAL) is None
    assert frontier_chart(table.assign(output_throughput=[973.0, 1100.0]), AS_USUAL) is not None


def test_of_configurations_that_serve_alike_the_one_with_the_lowest_ttft_comes_first() -> None:
    def labels(*rows: tuple[str, float, float]) -> list[str]:
        keys = ("label", "output_throughput", "p99_ttft_ms")
        groups = by_throughput([dict(zip(keys, row, strict=True)) for row in rows])
        return ["".join(each["label"] for each in group) for group in groups]

    assert labels(("a", 972.9, 4300), ("b", 973.1, 1050), ("c", 1000, 9000), ("d", 940, 500)) == ["c", "ba", "d"]
    chained = labels(("a", 1000, 9), ("b", 985, 5), ("c", 970, 1))
    assert chained == ["ba", "c"], "c is near b and not near the highest"
    assert labels(("a", 100, math.nan), ("b", math.nan, 1.0), ("c", 100, 50)) == ["ca", "b"]
    assert labels() == []


def test_latencies_far_apart_are_on_a_logarithmic_axis_and_near_ones_on_one_from_zero() -> None:
    for slowest, is_log in ((90_000, True), (600, False)):
        chart = metrics_page_chart(table_of(["policy"], policy=["a", "b"]).assign(p99_ttft_ms=[500, slowest]))
        assert chart is not None
        assert panel_of(chart, "p99 TTFT").x.log is is_log


def test_a_metric_that_none_of_the_drawn_rows_has_is_left_out() -> None:
    table = table_of(["policy"], policy=[f"p{number}" for number in range(41)])
    table["output_throughput"] = 100.0 - np.arange(41)
    table["preemptions"] = [0] * 40 + [3]
    chart = metrics_page_chart(table)
    assert chart is not None and "Preemptions" not in texts(chart) and len(chart.panels[0].y.names or ()) == 40


def test_the_tail_is_p99_or_the_highest_percentile_there_is() -> None:
    columns = ["p50_ttft_ms", "p90_ttft_ms", "p99_ttft_ms", "p99.9_ttft_ms"]
    table = pd.DataFrame([dict.fromkeys(columns, 5.0)])
    assert [shown.column for shown in headline_metrics(table)] == ["p99_ttft_ms"]
    assert [shown.column for shown in headline_metrics(table[columns[:2]])] == ["p90_ttft_ms"]
