"""Planning a step while the one before it runs."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.claims.claim import Claim, Data, Verdict
from experiments.claims.drawing import legend_above
from experiments.claims.lab import BACKLOG, Lab
from harness.plots.style import COLORS, head, panels

_MODELS = ("qwen3-0.6b", "qwen3-8b", "llama-3.1-70b")
_SEATS = (8, 64, 256)
_PARALLEL = {"llama-3.1-70b": 4}


def measure(lab: Lab) -> Data:
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
    return data


def judge(data: Data) -> Verdict:
    gains = {(row["model"], row["seats"]): row["gain"] for row in data["h100"]}
    listed = "; ".join(f"{model} {', '.join(f'{gains[model, seats]:+.0%}' for seats in _SEATS)}" for model in _MODELS)
    return Verdict(
        "yes" if min(gains.values()) > 0 else "partly",
        f"Simulated throughput of a backlog of ShareGPT lengths on H100 with {', '.join(map(str, _SEATS))} seats: "
        f"{listed} (70B on 4 GPUs).",
        "The gain is the host's share of a step: the larger the model, the smaller it is. A stop that could not be "
        "foreseen costs one more slot. The host's times are those fitted to vLLM; our real engine does not plan ahead, "
        "so nothing is measured.",
    )


def draw(data: Data) -> Figure:
    figure, grid = panels(
        "Asynchronous scheduling",
        "Gain in output tokens/s when each step is planned while the one before it runs; a backlog of ShareGPT "
        "lengths on H100, SIMULATED",
        1,
        1,
        (6.4, 2.8),
    )
    for index, seats in enumerate(_SEATS):
        gains = [100 * row["gain"] for row in data["h100"] if row["seats"] == seats]
        places = [place + 0.27 * index for place in range(len(_MODELS))]
        bars = grid[0][0].bar(places, gains, 0.25, color=COLORS[index], label=f"{seats} seats")
        grid[0][0].bar_label(bars, [f"{gain:+.0f} %" for gain in gains], fontsize=7.5)
    grid[0][0].set_xticks([place + 0.27 for place in range(len(_MODELS))], _MODELS)
    grid[0][0].set_ylabel("gain, %")
    legend_above(grid[0][0], columns=3)
    head(grid[0][0], "H100", "SIMULATED")
    return figure


CLAIM = Claim(
    "Asynchronous scheduling hides the host's time",
    "Planning the next step while the device works on this one removes the scheduler from the critical path.",
    "Srivatsa et al., Can scheduling overhead dominate LLM inference performance?, 2024; the default of vLLM 0.19",
    measure,
    judge,
    draw,
)
