"""Planning a step while the one before it runs."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.claims.claim import Claim, Data, Verdict
from experiments.claims.lab import BACKLOG, TINY_TRAFFIC, Lab
from harness.plots.style import COLORS, head, panels

_MODELS = ("qwen3-0.6b", "qwen3-8b", "llama-3.1-70b")
_PARALLEL = {"llama-3.1-70b": 4}


def measure(lab: Lab) -> Data:
    data: Data = {"h100": [], "tiny": []}
    for is_async in (False, True):
        switch = f"scheduler.async_scheduling={str(is_async).lower()}"
        for model in _MODELS:
            ranks = f"tensor_parallel_size={_PARALLEL.get(model, 1)}"
            summary = lab.simulate(*BACKLOG, "trace.num_requests=2000", f"model={model}", ranks, switch).summary
            data["h100"].append({"async": is_async, "model": model, "tokens_per_s": summary["output_throughput"]})
        for way, run in (("simulated", lab.predict), ("measured", lab.serve)):
            summary = run(*TINY_TRAFFIC, "trace.num_requests=96", "arrival=all_at_once", switch).summary
            data["tiny"].append({"async": is_async, "way": way, "tokens_per_s": summary["output_throughput"]})
    return data


def judge(data: Data) -> Verdict:
    gains = {model: _gain(data["h100"], "model", model) for model in _MODELS}
    tiny = {way: _gain(data["tiny"], "way", way) for way in ("simulated", "measured")}
    listed = ", ".join(f"{gain:+.0%} for {model}" for model, gain in gains.items())
    return Verdict(
        "yes" if min(gains.values()) > 0 else "partly",
        f"Simulated throughput of a backlog on H100: {listed} (70B on 4 GPUs). Tiny: {tiny['measured']:+.0%} measured, "
        f"{tiny['simulated']:+.0%} simulated.",
        "The gain is the host's share of a step: the larger the model or the batch, the smaller it is. A stop that "
        "could not be foreseen costs one more slot. On the CPU the planner and the model share the same cores.",
    )


def _gain(rows: list[Data], key: str, value: str) -> float:
    off, on = (row["tokens_per_s"] for row in rows if row[key] == value)
    return float(on / off - 1)


def draw(data: Data) -> Figure:
    figure, grid = panels(
        "Asynchronous scheduling",
        "Output tokens/s with each step planned while the one before it runs, relative to "
        "planning after it; a backlog of requests",
        1,
        2,
        (8.0, 2.8),
        sharey=True,
    )
    for axes, key, names, labels in (
        (grid[0][0], "model", _MODELS, _MODELS),
        (grid[0][1], "way", ("simulated", "measured"), ("SIMULATED", "MEASURED")),
    ):
        gains = [100 * _gain(data["h100" if key == "model" else "tiny"], key, name) for name in names]
        bars = axes.bar(range(len(names)), gains, 0.6, color=COLORS[0])
        axes.bar_label(bars, [f"{gain:+.1f} %" for gain in gains], fontsize=8)
        axes.set_xticks(range(len(names)), labels)
    grid[0][0].set_ylabel("gain in tokens/s, %")
    head(grid[0][0], "H100", "SIMULATED")
    head(grid[0][1], "Tiny model, CPU")
    return figure


CLAIM = Claim(
    "Asynchronous scheduling hides the host's time",
    "Planning the next step while the device works on this one removes the scheduler from the critical path.",
    "Srivatsa et al., Can scheduling overhead dominate LLM inference performance?, 2024; the default of vLLM 0.19",
    measure,
    judge,
    draw,
)
