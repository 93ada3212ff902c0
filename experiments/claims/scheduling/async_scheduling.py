"""Planning a step while the one before it runs."""

from __future__ import annotations

from statistics import median

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.claims.claim import Claim, Data, Verdict
from experiments.claims.drawing import bars, pictured
from experiments.claims.lab import BACKLOG, Lab
from harness.config.schema.tasks.plotting import PlotConfig
from harness.figures.style import COLORS

_MODELS = ("qwen3-0.6b", "qwen3-8b", "llama-3.1-70b")
_SEATS = (8, 64, 256)
_PARALLEL = {"llama-3.1-70b": 4}
_TINY_SEATS = (8, 32)
_NUM_PAIRS = 12


def measure(lab: Lab) -> Data:
    from experiments.claims.pairs import paired_runs  # loads torch, which the page and the figures do without

    data: Data = {"h100": []}
    for model in _MODELS:
        for seats in _SEATS:
            load = (f"trace.num_requests={8 * seats}", f"max_num_seqs={seats}", f"model={model}")
            ranks = f"tensor_parallel_size={_PARALLEL.get(model, 1)}"
            speeds = [
                lab.simulate(*BACKLOG, *load, ranks, f"scheduler.async_scheduling={value}").summary["output_throughput"]
                for value in ("false", "true")
            ]
            data["h100"].append({"model": model, "seats": seats, "gain": speeds[1] / speeds[0] - 1})
    data["tiny"] = [row for seats in _TINY_SEATS for row in paired_runs(seats, _NUM_PAIRS)]
    return data


def _tiny_gains(data: Data, seats: int) -> list[float]:
    """Of the throughput, in each pair of runs."""
    pairs = [row for row in data["tiny"] if row["seats"] == seats]
    return [row["in_turn"]["seconds"] / row["ahead"]["seconds"] - 1 for row in pairs]


def judge(data: Data) -> Verdict:
    gains = {(row["model"], row["seats"]): row["gain"] for row in data["h100"]}
    listed = "; ".join(f"{model} {', '.join(f'{gains[model, seats]:+.0%}' for seats in _SEATS)}" for model in _MODELS)
    tiny = "; ".join(
        f"{seats} seats {middle:+.0%} (half of them {low:+.0%} to {high:+.0%})"
        for seats in _TINY_SEATS
        for low, middle, high in [np.quantile(_tiny_gains(data, seats), [0.25, 0.5, 0.75])]
    )
    in_turn = [row["in_turn"] for row in data["tiny"]]
    share = median(1e-3 * row["host_ms"] * row["steps"] / row["seconds"] for row in in_turn)
    more = sum(row["ahead"]["steps"] - row["in_turn"]["steps"] for row in data["tiny"]) / len(data["tiny"])
    doubt = ""
    medians = [median(_tiny_gains(data, seats)) for seats in _TINY_SEATS]
    if max(medians) < share / 3:
        doubt = " There nothing is gained: on a CPU host and model compete for the same cores."
    elif max(medians) > share / (1 - share):
        doubt = (
            f" There more is gained than the {share:.0%} that could be hidden, so the rest has another cause, "
            "probably that two threads get more than one of cores that other work keeps busy."
        )
    return Verdict(
        "yes" if min(*gains.values(), *medians) > 0.01 else "partly",
        f"Simulated throughput of a backlog of ShareGPT lengths on H100 with {', '.join(map(str, _SEATS))} seats: "
        f"{listed} (70B on 4 GPUs). Measured with tiny on a CPU, medians of {_NUM_PAIRS} pairs of runs: {tiny}; "
        f"planning and making the inputs take {share:.0%} of the time there, and a run takes {more:.1f} steps more.",
        "The gain is the host's share of a step: the larger the model, the smaller it is. A stop that could not be "
        "foreseen costs one more slot, and a seat that becomes free stays empty for one more step. The host's times "
        "of the simulation are those fitted to vLLM. On the CPU the model runs in a thread of the scheduler's process, "
        "and both share the interpreter." + doubt + " Nothing is measured on a GPU.",
    )


def draw(data: Data, plot: PlotConfig) -> Figure:
    gains = {f"{seats} seats": [100 * row["gain"] for row in data["h100"] if row["seats"] == seats] for seats in _SEATS}
    texts = [[f"{gain:+.0f} %" for gain in found] for found in gains.values()]

    def measured(axes: Axes) -> None:
        for index, seats in enumerate(_TINY_SEATS):
            found = [100 * gain for gain in _tiny_gains(data, seats)]
            axes.plot([index] * len(found), found, "o", color=COLORS[index])
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_xlim(-0.5, len(_TINY_SEATS) - 0.5)
        axes.set_xticks(range(len(_TINY_SEATS)), [f"{seats} seats" for seats in _TINY_SEATS])
        axes.set_ylabel("gain of each pair, %")

    subtitle = (
        "Gain in output tokens/s when each step is planned while the one before it runs; a backlog of ShareGPT "
        "lengths on H100, SIMULATED, and of short requests with tiny on a CPU, MEASURED"
    )
    panels = [
        ("H100", "SIMULATED", bars(gains, _MODELS, "gain, %", texts, legend_columns=3)),
        ("tiny on a CPU", "MEASURED", measured),
    ]
    return pictured(plot, "Asynchronous scheduling", subtitle, panels, 2.7, per_row=1)


CLAIM = Claim(
    "Asynchronous scheduling hides the host's time",
    "Planning the next step while the device works on this one removes the scheduler from the critical path.",
    "Srivatsa et al., Can scheduling overhead dominate LLM inference performance?, 2024; the default of vLLM 0.19",
    measure,
    judge,
    draw,
)
