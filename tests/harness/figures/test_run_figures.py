"""Figures of a run: which are drawn, that what they show is in the tables, and that no case breaks or warns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.config import SloConfig
from harness.config.schema.tasks.plotting import AS_USUAL
from harness.figures import write_run_charts
from harness.figures.charts.latency import latency_chart
from harness.figures.charts.timeline import cache_chart, timeline_chart
from tests.harness.figures.builders import PNG, summary_of, texts
from tests.harness.results.builders import ToyRequest, heavy_tailed_requests, run_toy_engine

CASES = {
    "saturated": (heavy_tailed_requests(200, 60, hit_share=0.4), {"num_blocks": 400}, {"latency", "timeline", "cache"}),
    "light": (heavy_tailed_requests(60, 3), {}, {"latency", "timeline"}),
    "cut short": (heavy_tailed_requests(200, 20), {"until_s": 5.0}, {"latency", "timeline"}),
    "nothing finished": (heavy_tailed_requests(20, 50), {"until_s": 0.03}, {"timeline"}),
    "two tokens": ([ToyRequest(0.0, 100, 2)], {}, {"latency", "timeline"}),
    "one token": ([ToyRequest(0.2, 100, 1)], {}, {"latency", "timeline"}),
    "all rejected": ([ToyRequest(0.2, 10**9, 1)], {}, set()),
    "empty": ([], {}, set()),
}
QUICK = ("saturated", "nothing finished", "two tokens", "all rejected")


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "settings"),
    [
        *(pytest.param(case, {}, marks=[] if case in QUICK else [pytest.mark.slow]) for case in CASES),
        *((case, {"warmup": 1.0, "drain": 1.0}) for case in ("one token", "empty")),
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
    for chart in (
        latency_chart(result, summary),
        timeline_chart(result, summary, AS_USUAL),
        cache_chart(result, summary),
    ):
        assert chart is not None
        assert word in texts(chart)
        assert "qwen3-8b on h100-80gb" in texts(chart) and "trace sharegpt" in texts(chart)


def test_latency_curves_pass_through_the_percentiles_of_the_summary() -> None:
    result = run_toy_engine(heavy_tailed_requests(300, 20))
    summary = summary_of(result, warmup=2.0)
    chart = latency_chart(result, summary)
    assert chart is not None
    for place, name in enumerate(("ttft", "tpot", "itl", "e2el")):
        for panel, shares in zip(chart.panels[2 * place : 2 * place + 2], ((0.5, 0.99), (0.5, 0.01)), strict=True):
            scale = 1e3 if panel.x.label == "s" else 1.0
            curve, marked = panel.series
            expected = [summary[f"p50_{name}_ms"], summary[f"p99_{name}_ms"]]
            assert [value * scale for value in marked.x] == pytest.approx(expected)
            assert list(marked.y) == pytest.approx(shares)
            order = np.argsort(curve.y)
            found = np.interp(shares[1], np.asarray(curve.y)[order], np.asarray(curve.x)[order])
            assert found * scale == pytest.approx(expected[1], rel=0.01)
        assert panel.y.log and not chart.panels[2 * place].y.log


def test_latency_figures_say_how_many_requests_are_within_the_slo() -> None:
    result = run_toy_engine(heavy_tailed_requests(300, 20))
    chart = latency_chart(result, summary_of(result, slo=SloConfig(ttft_ms=40.0)))
    assert chart is not None
    counted = result.requests["ttft"].dropna()
    assert f"{(counted <= 0.04).mean():.1%} within SLO 40 ms" in chart.panels[0].facts
    marks = [[(mark.name, mark.value) for mark in panel.marks] for panel in chart.panels]
    assert marks == [[("SLO 40 ms", 40.0)]] * 2 + [[]] * 6


def test_the_timeline_marks_the_last_arrival_and_the_limits() -> None:
    result = run_toy_engine(heavy_tailed_requests(400, 60), num_blocks=300)
    seats = int(result.steps["num_running"].max())
    result = replace(result, meta={**result.meta, "config": {"max_num_seqs": seats}})
    chart = timeline_chart(result, summary_of(result), AS_USUAL)
    assert chart is not None
    marks = [(mark.name, mark.value) for panel in chart.panels for mark in panel.marks]
    last = ("last arrival", result.requests["arrival_time"].max())
    assert marks.count(last) == len(chart.panels)
    assert [mark for mark in marks if mark != last] == [(f"{seats} seats", seats), ("whole pool", 100.0)]
    assert f"of {seats} seats" in texts(chart)


def test_timeline_areas_are_the_totals_of_the_tables() -> None:
    result = run_toy_engine(heavy_tailed_requests(400, 30), num_blocks=700)
    summary = summary_of(result)
    chart = timeline_chart(result, summary, AS_USUAL)
    assert chart is not None
    drawn = {panel.title.split(" (")[0]: panel.series[0] for panel in chart.panels}
    area = {title: float(np.asarray(series.y) @ np.diff(series.x)) for title, series in drawn.items()}
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
    chart = timeline_chart(result, summary_of(result), AS_USUAL)
    assert chart is not None
    assert "no preemptions" in texts(chart) and "no waiting requests" in texts(chart)
    assert len(chart.panels) == 5
    older = replace(result, step_rows=result.steps.drop(columns=["num_kv_tokens", "num_reserved_slots"]))
    chart = timeline_chart(older, summary_of(older), AS_USUAL)
    assert chart is not None and len(chart.panels) == 4, "an earlier version did not record what slots are used for"
