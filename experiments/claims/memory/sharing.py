"""Blocks that samples of one prompt share."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.claims.claim import Claim, Data, Verdict
from experiments.claims.lab import Lab
from harness.config.schema.tasks.plotting import PlotConfig
from harness.figures.style import COLORS, fitting, head

_WIDTHS = (2, 4, 6)
# Mean lengths of the two data sets as the source gives them, tokens of prompt and output.
_SETS = {"Alpaca": (19, 58), "ShareGPT": (161, 338)}


def measure(lab: Lab) -> Data:
    data: Data = {"simulated": [], "tiny": []}
    for name, (prompt, output) in _SETS.items():
        lengths = _lengths(prompt, output)
        for width in _WIDTHS:
            settings = [*lengths, f"trace.n={width}", "trace.num_requests=600", "arrival.rate=8"]
            summary = lab.simulate(*settings, "scheduler.enable_prefix_caching=false").summary
            data["simulated"].append({"set": name, "width": width, "saved": summary["saved_block_share"]})
    for width in _WIDTHS:
        settings = [*_lengths(60, 60), f"trace.n={width}", "trace.num_requests=40", "arrival.rate=3"]
        for way, run in (("simulated", lab.predict), ("measured", lab.serve)):
            saved = run(*settings, "scheduler.enable_prefix_caching=false").summary["saved_block_share"]
            data["tiny"].append({"way": way, "width": width, "saved": saved})
    return data


def _lengths(prompt: int, output: int) -> list[str]:
    return [
        "trace=synthetic", f"trace.prompt.mean={prompt}", f"trace.prompt.std={prompt}", f"trace.output.mean={output}",
        f"trace.output.std={output}", "trace.prompt.max=900", "trace.output.max=900",
    ]  # fmt: skip


def judge(data: Data) -> Verdict:
    def span(name: str) -> str:
        saved = [row["saved"] for row in data["simulated"] if row["set"] == name]
        return f"{min(saved):.0%} to {max(saved):.0%}"

    tiny = {(row["way"], row["width"]): row["saved"] for row in data["tiny"]}
    return Verdict(
        "yes",
        f"Simulated, 2, 4 and 6 samples, blocks of 16: parallel sampling saves {span('Alpaca')} (Alpaca's mean "
        f"lengths) and {span('ShareGPT')} (ShareGPT's) of the blocks. Tiny, 4 samples: {tiny['measured', 4]:.0%} "
        f"measured, {tiny['simulated', 4]:.0%} simulated.",
        "What samples save is the prompt, so it shrinks as outputs grow.",
    )


def draw(data: Data, plot: PlotConfig) -> Figure:
    figure, panels = fitting(
        "Blocks saved by sharing",
        "Share of the blocks that would be in use without sharing, blocks of 16. SIMULATED, and a tiny model on a CPU",
        2,
        plot,
        2.8,
        per_row=2,
        sharey=True,
    )
    for color, name in zip(COLORS, _SETS, strict=False):
        rows = [row for row in data["simulated"] if row["set"] == name]
        panels[0].plot([row["width"] for row in rows], [100 * row["saved"] for row in rows], "o-", color=color,
                       markerfacecolor="white", label=name)  # fmt: skip
    head(panels[0], "Parallel sampling", "SIMULATED")
    panels[0].legend(fontsize=7.5)
    panels[0].set_ylabel("blocks saved, %")
    for way, style, face in (("simulated", "o--", "white"), ("measured", "s-", COLORS[0])):
        rows = [row for row in data["tiny"] if row["way"] == way]
        panels[1].plot([row["width"] for row in rows], [100 * row["saved"] for row in rows], style, color=COLORS[0],
                       markerfacecolor=face, label=way.upper())  # fmt: skip
    panels[1].legend(fontsize=7.5)
    for axes in panels:
        axes.set_xlabel("samples per request")
        axes.set_xticks(_WIDTHS)
    head(panels[1], "Samples, tiny model, CPU")
    return figure


CLAIM = Claim(
    "Samples share up to 31 % of the blocks",
    "Copy-on-write saves 6 to 10 % of the blocks for parallel sampling on Alpaca, 16 to 31 % on ShareGPT.",
    "Kwon et al., PagedAttention, SOSP 2023, section 6.3 and figure 15",
    measure,
    judge,
    draw,
)
