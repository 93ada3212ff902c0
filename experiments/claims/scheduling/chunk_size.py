"""The token budget of a step: TTFT against the gaps between tokens."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from experiments.claims.claim import Claim, Data, Verdict
from experiments.claims.lab import Lab
from harness.config.schema.tasks.plotting import PlotConfig
from harness.figures.style import COLORS, fitting, head, log_axis

_BUDGETS = (512, 1024, 2048, 4096, 8192)
_TINY_BUDGETS = (32, 64, 128, 256, 512)
_PROMPTS = ("trace=synthetic", "trace/lengths@trace.prompt=lognormal", "trace/lengths@trace.output=lognormal")
_LONG = (*_PROMPTS, "trace.prompt.mean=3000", "trace.prompt.std=2000", "trace.prompt.max=8000", "trace.output.mean=200")
_SHORT = (*_PROMPTS, "trace.prompt.mean=200", "trace.prompt.max=480", "trace.output.mean=40", "trace.output.max=200")


def measure(lab: Lab) -> Data:
    data: Data = {"h100": [], "tiny": []}
    for budget in _BUDGETS:
        limits = (
            f"max_num_batched_tokens={budget}",
            "scheduler.watermark=0",
            "arrival.rate=5",
            "trace.num_requests=1500",
        )
        data["h100"].append({"budget": budget, **_latencies(lab.simulate(*_LONG, *limits).summary)})
    for budget in _TINY_BUDGETS:
        load = (f"max_num_batched_tokens={budget}", "arrival.rate=6", "trace.num_requests=60")
        for way, run in (("simulated", lab.predict), ("measured", lab.serve)):
            data["tiny"].append({"budget": budget, "way": way, **_latencies(run(*_SHORT, *load).summary)})
    return data


def _latencies(summary: dict[str, Any]) -> dict[str, float]:
    return {name: summary[f"{name}_ms"] for name in ("mean_ttft", "p99_ttft", "mean_tpot", "p99_itl")}


def judge(data: Data) -> Verdict:
    small, large = data["h100"][0], data["h100"][-1]
    best = min(data["h100"], key=lambda row: row["mean_ttft"])
    tiny = {(row["way"], row["budget"]): row for row in data["tiny"]}
    ends = [tiny["measured", _TINY_BUDGETS[0]], tiny["measured", _TINY_BUDGETS[-1]]]
    predicted = [tiny["simulated", _TINY_BUDGETS[0]], tiny["simulated", _TINY_BUDGETS[-1]]]
    return Verdict(
        "yes",
        f"Simulated at 5 requests/s with prompts of 3,000 tokens: from {small['budget']:,} to {large['budget']:,} "
        f"tokens the mean TTFT goes from {small['mean_ttft']:,.0f} to {large['mean_ttft']:,.0f} ms (least at "
        f"{best['budget']:,}) and the p99 gap between tokens from {small['p99_itl']:.0f} to {large['p99_itl']:.0f} "
        f"ms. Tiny, {_TINY_BUDGETS[0]} to {_TINY_BUDGETS[-1]} tokens: TTFT {ends[0]['mean_ttft']:.0f} to "
        f"{ends[1]['mean_ttft']:.0f} ms, p99 gap {ends[0]['p99_itl']:.0f} to {ends[1]['p99_itl']:.0f} ms measured, "
        f"TTFT {predicted[0]['mean_ttft']:.0f} to {predicted[1]['mean_ttft']:.0f}, gap {predicted[0]['p99_itl']:.0f} "
        f"to {predicted[1]['p99_itl']:.0f} simulated.",
        "Above the longest prompts a larger budget changes little. Below the point where a step is bound by arithmetic "
        "a smaller chunk costs throughput, and at high load both latencies.",
    )


def draw(data: Data, plot: PlotConfig) -> Figure:
    figure, panels = fitting(
        "The token budget of a step",
        "Chunked prefill (mixed): a point per max_num_batched_tokens. Hollow: SIMULATED, filled: MEASURED",
        2,
        plot,
        3.2,
    )
    _curve(panels[0], data["h100"], COLORS[0], simulated=True)
    head(panels[0], "Qwen3-8B on H100", "5 requests/s, prompts of 3,000 tokens")
    for color, way in zip(COLORS, ("simulated", "measured"), strict=False):
        _curve(panels[1], [row for row in data["tiny"] if row["way"] == way], color, simulated=way == "simulated")
    head(panels[1], "Tiny model, CPU", "6 requests/s, prompts of 200 tokens")
    return figure


def _curve(axes: Any, rows: list[Data], color: str, *, simulated: bool) -> None:
    x, y = [row["mean_ttft"] for row in rows], [row["p99_itl"] for row in rows]
    axes.plot(
        x, y, "o-" if simulated else "s-", color=color, markerfacecolor="white" if simulated else color, markersize=5
    )
    for row, left, top in zip(rows, x, y, strict=True):
        axes.annotate(f"{row['budget']:,}", (left, top), (5, 3), textcoords="offset points", fontsize=7)
    (low_x, high_x), (low_y, high_y) = axes.dataLim.intervalx, axes.dataLim.intervaly
    log_axis(axes, "x", low_x / 1.3, high_x * 1.3, num_ticks=5)
    log_axis(axes, "y", low_y / 1.3, high_y * 1.3, num_ticks=5)
    axes.set_xlabel("mean TTFT, ms")
    axes.set_ylabel("p99 gap between tokens, ms")


CLAIM = Claim(
    "The chunk size trades TTFT for TPOT",
    "Small prefill chunks keep the gaps between tokens short and make the first token late; large chunks do the "
    "reverse.",
    "Agrawal et al., Sarathi-Serve, OSDI 2024",
    measure,
    judge,
    draw,
)
