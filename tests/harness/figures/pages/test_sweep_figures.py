"""Which configuration of a sweep a page names first, and how its figures show values that lie far apart."""

from __future__ import annotations

import math
from typing import Any

from harness.figures.pages.sweep_figures import bar_figures, by_throughput, frontier_figure


def row(label: str, throughput: float, ttft: float, **more: Any) -> dict[str, Any]:
    return {"label": label, "output_throughput": throughput, "p99_ttft_ms": ttft, **more}


def labels(rows: list[dict[str, Any]]) -> list[str]:
    return ["".join(each["label"] for each in group) for group in by_throughput(rows)]


def test_of_configurations_that_serve_alike_the_one_with_the_lowest_ttft_comes_first() -> None:
    rows = [row("a", 972.9, 4300), row("b", 973.1, 1050), row("c", 1000, 9000), row("d", 940, 500)]
    assert labels(rows) == ["c", "ba", "d"]
    chained = [row("a", 1000, 9), row("b", 985, 5), row("c", 970, 1)]
    assert labels(chained) == ["ba", "c"], "c is near b and not near the highest"
    unknown = [row("a", 100, math.nan), row("b", math.nan, 1.0), row("c", 100, 50)]
    assert labels(unknown) == ["ca", "b"]
    assert by_throughput([]) == []


def test_latencies_far_apart_are_points_on_a_logarithmic_axis_and_near_ones_bars() -> None:
    (wide,) = (each for each in bar_figures([row("a", 1, 90_000), row("b", 1, 500)], ["x"], {}) if "TTFT" in each.title)
    assert wide.x.log and [series.kind for series in wide.series] == ["points"]
    (near,) = (each for each in bar_figures([row("a", 1, 600), row("b", 1, 500)], ["x"], {}) if "TTFT" in each.title)
    assert not near.x.log and [series.kind for series in near.series] == ["bars"]
    bounds = {"p99_ttft_ms_low": 400, "p99_ttft_ms_high": 800}
    (sure,) = (each for each in bar_figures([row("a", 1, 600, **bounds)], ["x"], {}) if "TTFT" in each.title)
    assert sure.x.log and [series.kind for series in sure.series] == ["interval"]


def test_there_is_no_frontier_where_all_have_the_same_throughput() -> None:
    known = {"num_gpus": 1, "median_tpot_ms": 20.0}
    rows = [row("a", 973, 500, **known), row("b", 960, 900, **known)]
    assert frontier_figure(rows, None) is None
    assert frontier_figure([*rows, row("c", 1100, 900, **known)], None) is not None


def test_a_metric_that_none_of_the_drawn_rows_has_is_left_out() -> None:
    rows = [{"label": str(i), "output_throughput": 100.0 - i, "preemptions": None} for i in range(41)]
    titles = {each.title for each in bar_figures([*rows[:40], {**rows[40], "preemptions": 3}], ["x"], {})}
    assert titles == {"Output throughput"}
