"""Figures of a run: which are drawn, that what they show is in the tables, and that no case breaks or warns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.config import SloConfig
from harness.config.plotting import AS_USUAL, PlotConfig
from harness.figures import write_run_charts
from harness.figures.charts.latency import draw_latency
from harness.figures.charts.timeline import draw_cache, draw_timeline
from tests.harness.figures.builders import PNG, summary_of, texts
from tests.harness.made_up_results import ToyRequest, heavy_tailed_requests, run_toy_engine

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


@pytest.mark.parametrize(
    ("case", "settings"),
    [
        *((case, {}) for case in CASES),
        *((case, {"warmup": 1.0, "drain": 1.0}) for case in ("light", "one token", "empty")),
    ],
)
def test_a_run_gives_the_figures_it_has_data_for(tmp_path: Path, case: str, settings: dict[str, float]) -> None:
    requests, engine, expected = CASES[case]
    requests = [replace(request, tokens=[]) for request in requests]
    result = run_toy_engine(requests, **engine)  # type: ignore[arg-type]
    summary = summary_of(result, **settings)
    paths = write_run_charts(result, summary, tmp_path, AS_USUAL)
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


def test_figures_are_written_in_every_format(tmp_path: Path) -> None:
    result = run_toy_engine(heavy_tailed_requests(60, 3))
    paths = write_run_charts(result, summary_of(result), tmp_path, PlotConfig(formats=("png", "svg", "pdf")))
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
