"""How figures are drawn and written: names, labels, files, and the figures of profiles and calibrations."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from harness.config.plotting import AS_USUAL, PlotConfig
from harness.figures import write_comparison_charts, write_run_charts
from harness.figures.charts.calibration import draw_calibration
from harness.figures.charts.profile import draw_profile
from harness.figures.labels import parameter_label, parameter_title
from harness.figures.placement import Name, name_ends, name_points
from harness.figures.style import WIDTHS_IN, fitting, save
from simulator.profile.files import load_profile
from tests.harness.builders import ROOT
from tests.harness.figures.builders import PNG, RATES, curves_of, summary_of, table_of
from tests.harness.made_up_results import heavy_tailed_requests, run_toy_engine


def test_a_profile_is_drawn_by_the_shapes_of_its_operators() -> None:
    profile = load_profile(ROOT / "simulator/profiles/amd-epyc/tiny/tp1")
    for width in WIDTHS_IN:
        figure = draw_profile(profile, PlotConfig(width=width))  # type: ignore[arg-type]
        titles = [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()]
        assert titles[:3] == [
            "Operators by tokens",
            "Prefill attention, by context",
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
    assert write_run_charts(result, {**summary_of(result), "trace": "$$ $\\bad{$"}, tmp_path, AS_USUAL)
    table = table_of(["a $$"], "arrival.rate", **RATES, **{"a $$": ["$\\x{$", "y", "$\\x{$", "y"]})
    assert write_comparison_charts(table, curves_of(table), tmp_path, AS_USUAL)


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


def test_a_figure_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def disk_full(self: Figure, path: Path) -> None:
        path.write_bytes(PNG)
        raise OSError("no space left on device")

    monkeypatch.setattr(Figure, "savefig", disk_full)
    with pytest.raises(OSError, match="no space"):
        save(Figure(), tmp_path / "x.png")
    assert list(tmp_path.iterdir()) == []


def test_matplotlib_is_not_imported_before_a_figure_is_drawn() -> None:
    code = "import sys, harness.figures, harness.sweeps.sweep, harness.runs.run\n"
    code += "sys.exit('matplotlib' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
