"""task=plot: which figures stored results give, with which axes, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.errors import TwinServeError
from harness.studies.comparison.drawing import draw
from tests.harness.builders import ROOT, config
from tests.harness.results.builders import store

PROFILE = ROOT / "simulator/profiles/amd-epyc/tiny/tp1"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored")
    for size in (16, 32):
        store(folder / str(size), {"block_size": size, "seed": 0})
    return folder


def drawn(out: Path, *overrides: str) -> set[str]:
    draw(config("task=plot", *overrides), out)
    return {path.name for path in out.iterdir()}


def test_a_run_has_its_figures_and_a_set_has_those_of_a_comparison(stored: Path, tmp_path: Path) -> None:
    one = drawn(tmp_path / "one", f"results=[{stored / '16'}]", "plot.formats=[svg]")
    assert one == {"latency.svg", "timeline.svg"}
    both = drawn(tmp_path / "both", f"results=[{stored}]", "plot.width=column")
    assert both == {"comparison_metrics.png", "comparison_latency.png"}, "of equal throughputs there is no frontier"


def test_axes_metrics_and_labels_can_be_chosen(stored: Path, tmp_path: Path) -> None:
    axes = ["plot.x=block_size", "plot.y=p99_ttft_ms", "plot.labels={p99_ttft_ms: slowest}", "plot.formats=[svg]"]
    assert drawn(tmp_path, f"results=[{stored}]", *axes) == {"comparison.svg"}


def test_profiles_and_calibrations_are_drawn(stored: Path, tmp_path: Path) -> None:
    shutil.copytree(PROFILE, tmp_path / "profile" / "tp1")
    fit = tmp_path / "fit"
    fit.mkdir()
    (fit / "calibration.yaml").write_text("constants: {a: 1.5}\nobjective: {before: 0.5, after: 0.1}\n")
    names = f"results=[{PROFILE},{tmp_path / 'profile'},{fit},{stored / '16'}]"
    expected = {"profile_0.png", "profile_1.png", "calibration_2.png", "latency.png", "timeline.png"}
    assert drawn(tmp_path / "out", names) == expected


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        (["plot.x=block_sizes"], "plot.x=block_sizes: no column of comparison.csv; did you mean 'block_size'"),
        (["plot.y=[p99_ttft_ms,label]"], "plot.y=label: holds no numbers"),
        (["plot.color=nothing_like_it"], "plot.color=nothing_like_it: no column"),
        (["results=[nowhere]"], "nowhere is not a folder"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(stored: Path, tmp_path: Path, overrides: list[str], error: str) -> None:
    with pytest.raises(TwinServeError, match=error):
        drawn(tmp_path, f"results=[{stored}]", *overrides)


def test_a_damaged_calibration_is_named(tmp_path: Path) -> None:
    (tmp_path / "calibration.yaml").write_text("constants: [")
    with pytest.raises(TwinServeError, match="calibration.yaml: not YAML"):
        drawn(tmp_path / "out", f"results=[{tmp_path}]")
