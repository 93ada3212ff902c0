"""How figures are drawn and written: names, labels, files, and the figures of profiles and calibrations."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from harness.config.schema.tasks.plotting import AS_USUAL, PlotConfig
from harness.figures import write_comparison_charts, write_run_charts
from harness.figures.chart import Axis, Chart, Mark, Name, Panel, Series, span
from harness.figures.charts.calibration import calibration_chart
from harness.figures.charts.profile import profile_chart
from harness.figures.drawing import draw
from harness.figures.labels import parameter_label, parameter_title
from harness.figures.placement import name_ends, name_points
from harness.figures.style import fitting, log_axis, save
from simulator.profile.profile_folder import load_profile
from tests.harness.builders import ROOT
from tests.harness.figures.builders import PNG, RATES, curves_of, summary_of, table_of
from tests.harness.results.builders import heavy_tailed_requests, run_toy_engine
from tests.selection import few


def test_a_profile_is_drawn_by_the_shapes_of_its_operators() -> None:
    profile = load_profile(ROOT / "simulator/profiles/amd-epyc/tiny/tp1")
    chart = profile_chart(profile)
    titles = [panel.title for panel in chart.panels]
    assert titles[:3] == ["Operators by tokens", "Prefill attention, by context", "Decode attention, by sequences"]
    operators = set(profile.tables["tokens"]["operator"])
    assert {series.name for series in chart.panels[0].series} == operators
    axes = draw(chart, AS_USUAL).axes[0]
    assert {text.get_text() for text in axes.texts} >= operators and len(axes.get_lines()) == len(operators)


def test_a_calibration_is_drawn_with_its_constants_and_errors_and_an_older_one_with_what_it_has() -> None:
    objective = {"before": 0.3, "after": 0.02, "evaluations": 50}
    older = {"cost": "roofline", "constants": {"a": 0.5, "b": 2.0}, "objective": objective, "fitted_on": {}}
    more = {"start": {"a": 0.8, "b": 1.0}, "limits": {"a": [0, 1], "b": [0, 4]}}
    more |= {"errors_before": {"ttft p99": -0.4}, "errors_after": {"ttft p99": 0.01}}
    chart = calibration_chart({**older, "objective": {**objective, **more}}, AS_USUAL)
    found = [[list(series.x) for series in panel.series if series.marker] for panel in chart.panels]
    assert found == [[[0.8, 0.25], [0.5, 0.5]], [[-40.0], [1.0]]], "before and after"
    assert "30.00% before, 2.00% after" in chart.panels[1].facts
    assert calibration_chart(older, AS_USUAL).panels[1].y.names == ("all",)


def test_the_range_of_an_axis_has_all_that_is_drawn_and_what_is_given() -> None:
    dots = Series("", "points", [1.0, None, 9.0], [2, 3, 4], low=[1, 1, None], high=[3, 8, None])
    panel = Panel("", Axis(), Axis(start=0), [dots], [Mark("SLO", "x", 12.0)])
    low, high = span(panel, "x")
    assert 0 < low < 1 and 12 < high < 13
    assert span(panel, "y")[0] == 0 and 8 < span(panel, "y")[1] < 9
    log = Panel("", Axis(log=True), Axis(names=("a", "b")), [Series("", "bars", [0.0, 10.0], [0, 1])])
    assert 0 < span(log, "x")[0] < 10 < span(log, "x")[1]
    assert span(log, "y") == (1.6, -0.6), "places run from the top"
    empty = Panel("", Axis(log=True), Axis(), [])
    assert span(empty, "x")[0] > 0 and span(empty, "y")[0] < span(empty, "y")[1]


def test_what_all_panels_of_a_row_share_is_said_once() -> None:
    y = Axis("share", names=("a", "b"))
    panels = [Panel(str(i), Axis("ms"), y, [Series("s", "bars", [1.0, 2.0], [0, 1])]) for i in range(4)]
    chart = Chart("title", "", panels, columns=2, by_column=True)
    axes = draw(chart, AS_USUAL).axes
    assert [each.get_title(loc="left") for each in axes] == ["0", "2", "1", "3"], "one column after the other"
    assert [each.get_ylabel() for each in axes] == ["share", ""] * 2
    assert [each.get_xlabel() for each in axes] == ["", "", "ms", "ms"]
    other = replace(panels[3], y=Axis("share"))
    in_rows = draw(replace(chart, by_column=False, panels=[*panels[:3], other]), AS_USUAL).axes
    assert [each.get_ylabel() for each in in_rows] == ["share", "", "share", "share"], "the last has another range"
    narrow = draw(chart, PlotConfig(width="column")).axes
    assert [each.get_title(loc="left") for each in narrow] == ["0", "1", "2", "3"]
    assert [each.get_xlabel() for each in narrow] == ["ms"] * 4


def test_a_name_with_dollar_signs_is_no_formula(tmp_path: Path) -> None:
    result = run_toy_engine(heavy_tailed_requests(20, 50), until_s=0.03)
    assert write_run_charts(result, {**summary_of(result), "trace": "$$ $\\bad{$"}, tmp_path, AS_USUAL)
    table = table_of(["a $$"], "arrival.rate", **RATES, **{"a $$": ["$\\x{$", "y", "$\\x{$", "y"]})
    assert write_comparison_charts(table, curves_of(table), tmp_path, PlotConfig(y=("p99_ttft_ms",)))


@pytest.mark.parametrize("seed", few(range(3)))
def test_names_do_not_cover_each_other(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.uniform(0, 1, (14, 2))
    words = [f"name {number}" for number in range(len(points))]
    for at_points in (True, False):
        figure, (axes,) = fitting("t", "s", 1, AS_USUAL, 3.0)
        axes.plot(*points.T, "o")
        figure.draw_without_rendering()
        if at_points:
            names = [[Name(x, y, word, "ink")] for (x, y), word in zip(points, words, strict=True)]
            left_out = name_points(axes, names, [point[None] for point in points], 6.5)
        else:
            name_ends(axes, [Name(1.0, y / 9, word, "ink") for (_, y), word in zip(points, words, strict=True)], 6.5)
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


def test_a_figure_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def disk_full(self: Figure, path: Path) -> None:
        path.write_bytes(PNG)
        raise OSError("no space left on device")

    monkeypatch.setattr(Figure, "savefig", disk_full)
    with pytest.raises(OSError, match="no space"):
        save(Figure(), tmp_path / "x.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("low", [0.0021, 1.7, 16.5, 55_258])
@pytest.mark.parametrize("times", [1.05, 2.1, 9.0, 40.0, 1e5])
def test_a_logarithmic_axis_has_a_few_numbers_however_narrow_it_is(low: float, times: float) -> None:
    figure = Figure(figsize=(3.2, 2.0))
    axes = figure.subplots()
    log_axis(axes, "x", low, low * times)
    axes.set_xlim(low, low * times)
    figure.draw_without_rendering()
    shown = [
        label
        for tick, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
        if low <= tick <= low * times
    ]
    assert 2 <= len(shown) <= 6
    boxes = [Text.get_window_extent(label) for label in shown]
    assert not any(box.overlaps(other) for box, other in pairwise(boxes))
