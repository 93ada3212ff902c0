"""Speculative decoding by load."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.claims.claim import Claim, Data, Verdict
from experiments.claims.drawing import bars, curves, legend_above, pictured
from experiments.claims.lab import TINY_TRAFFIC, Lab
from harness.config.schema.tasks.plotting import PlotConfig
from harness.figures.style import GREY

_BATCHES = (1, 4, 16, 64, 256)
_RATES = (0.4, 0.7)
_DRAFTS = 3


def measure(lab: Lab) -> Data:
    data: Data = {"h100": [], "tiny": []}
    lengths = ("trace=synthetic", "trace/lengths@trace.prompt=constant", "trace.prompt.value=512",
               "trace/lengths@trace.output=constant", "trace.output.value=256", "arrival=closed_loop")  # fmt: skip
    for batch in _BATCHES:
        load = (*lengths, f"arrival.concurrency={batch}", f"trace.num_requests={max(8, 4 * batch)}")
        plain = lab.simulate(*load).summary["output_throughput"]
        for rate in _RATES:
            drafts = (
                "speculation=ngram",
                f"speculation.num_speculative_tokens={_DRAFTS}",
                f"speculation.acceptance_rate={rate}",
            )
            summary = lab.simulate(*load, *drafts).summary
            data["h100"].append({"batch": batch, "rate": rate, "gain": summary["output_throughput"] / plain,
                                 "tokens": summary["mean_tokens_per_decode"]})  # fmt: skip
    backlog = (*TINY_TRAFFIC, "arrival=all_at_once", "trace.num_requests=48")
    for seats in (1, 8, 32):
        plain = lab.serve(*backlog, f"max_num_seqs={seats}").summary["output_throughput"]
        drafted = lab.serve(*backlog, f"max_num_seqs={seats}", "speculation=ngram").summary
        accepted = drafted["draft_acceptance_rate"] or 0.0
        data["tiny"].append({"seats": seats, "gain": drafted["output_throughput"] / plain, "accepted": accepted})
    return data


def judge(data: Data) -> Verdict:
    gains = {(row["batch"], row["rate"]): row["gain"] for row in data["h100"]}
    tiny = {row["seats"]: row for row in data["tiny"]}
    ends = [gains[batch, 0.7] for batch in (_BATCHES[0], _BATCHES[-1])]
    return Verdict(
        "yes" if ends[0] > ends[1] else "no",
        f"Simulated with {_DRAFTS} drafts that are each accepted with probability 0.7: {ends[0]:.2f} times the "
        f"tokens/s with one request at a time, {ends[1]:.2f} times with {_BATCHES[-1]}; with 0.4, "
        f"{gains[_BATCHES[0], 0.4]:.2f} and {gains[_BATCHES[-1], 0.4]:.2f}. Tiny, n-gram drafts of random weights: "
        f"{tiny[1]['accepted']:.0%} accepted, {tiny[1]['gain']:.2f} times with one seat, {tiny[32]['gain']:.2f} with "
        "32, measured.",
        "Verifying drafts is free while a step is bound by reading weights. Where it is bound by arithmetic, "
        "rejected drafts cost what accepted ones bring. Random weights fall into loops that prompt lookup guesses, "
        "which flatters the tiny model.",
    )


def draw(data: Data, plot: PlotConfig) -> Figure:
    gains = {f"{rate:.0%} of drafts accepted": [row for row in data["h100"] if row["rate"] == rate] for rate in _RATES}
    tiny = data["tiny"]
    ticks = [f"{row['seats']} seat{'s' * (row['seats'] > 1)}" for row in tiny]
    texts = [[f"{row['accepted']:.0%} accepted" for row in tiny]]
    x, y = ("batch", "requests at a time"), ("gain", "times the tokens/s")
    subtitle = (
        f"Throughput relative to plain decoding; {_DRAFTS} drafts per step. Qwen3-8B on H100, "
        "SIMULATED; a tiny model on a CPU with n-gram drafts, MEASURED"
    )
    panels = [
        ("H100", "SIMULATED", curves(gains, x, y, _BATCHES)),
        ("Tiny model, CPU", "MEASURED", bars({"": [row["gain"] for row in tiny]}, ticks, "", texts)),
    ]
    figure = pictured(plot, "Speculative decoding by load", subtitle, panels, 3)
    legend_above(figure.axes[0], columns=1)
    for axes in figure.axes:
        axes.axhline(1, color=GREY, linewidth=0.8)
    return figure


CLAIM = Claim(
    "Speculation pays at low load and not at high load",
    "Verifying several drafted tokens costs about one step while decoding is bound by memory; in large batches it is "
    "not.",
    "Leviathan et al., ICML 2023; Liu et al., Optimizing speculative decoding for serving with goodput, 2024",
    measure,
    judge,
    draw,
)
