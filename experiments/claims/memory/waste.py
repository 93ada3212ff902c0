"""KV memory lost to contiguous reservations and to paging."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from experiments.claims.claim import Claim, Data, Verdict
from experiments.claims.lab import BACKLOG, TINY_TRAFFIC, Lab
from harness.config.schema.tasks.plotting import PlotConfig
from harness.figures.style import COLORS, LIGHT, fitting, head

RESERVATIONS = {"max": "max_model_len", "pow2": "power of two", "exact": "true length"}
_FORESEEN = ("power of two", "true length")
_PAGES = (1, 16, 64, 256)
_PARTS = ("tokens", "reserved", "internal", "external")


def measure(lab: Lab) -> Data:
    data: Data = {"opt": [], "tiny": []}
    # The setting of the source: OPT-13B on one A100 of 40 GB has about 12 GB for the KV cache.
    server = (
        "model=opt-13b",
        "device=a100-80gb",
        "cost=roofline",
        "max_model_len=2048",
        *BACKLOG,
        "trace.num_requests=2000",
    )
    for label, settings in _allocators(15_728):
        summary = lab.simulate(*server, *settings).summary
        data["opt"].append({"allocator": label, "running": summary["mean_running"], **_shares(summary)})
    for label, settings in _allocators(4096):
        for way, run in (("simulated", lab.predict), ("measured", lab.serve)):
            if way == "measured" and label in _FORESEEN:
                continue  # a real engine does not know the true length
            summary = run(*TINY_TRAFFIC, "trace.num_requests=96", "arrival=all_at_once", *settings).summary
            data["tiny"].append({"allocator": label, "way": way, **_shares(summary)})
    return data


def _allocators(num_slots: int) -> list[tuple[str, list[str]]]:
    """Labels and settings; all have pools of equal size."""
    own = "scheduler.enable_prefix_caching=false"
    contiguous = [
        (label, [f"allocator={name}", "block_size=1", f"num_blocks={num_slots}", own])
        for name, label in (
            ("contiguous_max", "max_model_len"),
            ("contiguous_pow2", "power of two"),
            ("contiguous_exact", "true length"),
        )
    ]
    paged = [(f"pages of {size}", [f"block_size={size}", f"num_blocks={num_slots // size}", own]) for size in _PAGES]
    return [*contiguous, *paged]


def _shares(summary: dict[str, Any]) -> dict[str, float]:
    return {"waste": summary["kv_waste"], **{part: summary[f"mean_kv_{part}"] for part in _PARTS}}


def judge(data: Data) -> Verdict:
    opt = {row["allocator"]: row for row in data["opt"]}
    tiny = {(row["way"], row["allocator"]): row["waste"] for row in data["tiny"]}
    wasted = ", ".join(f"{opt[name]['waste']:.0%} ({name})" for name in RESERVATIONS.values())
    paged = ", ".join(f"{opt[f'pages of {size}']['waste']:.1%} (pages of {size})" for size in _PAGES)
    holds = opt["max_model_len"]["waste"] >= 0.6 and opt["pages of 16"]["waste"] < 0.04
    return Verdict(
        "yes" if holds else "partly",
        f"OPT-13B, ShareGPT lengths, 15,728 slots, simulated, share of the taken slots that holds no token: {wasted} "
        f"for contiguous reservations; {paged} for paging. Tiny: max_model_len "
        f"{tiny['measured', 'max_model_len']:.0%} measured and {tiny['simulated', 'max_model_len']:.0%} simulated, "
        f"pages of 16 {tiny['measured', 'pages of 16']:.1%} and {tiny['simulated', 'pages of 16']:.1%}.",
        "The waste of paging is half a block per sequence: with short sequences or large pages it is no longer "
        "small. A reservation wastes what a request could have used but did not, so the waste hangs on max_model_len.",
    )


def draw(data: Data, plot: PlotConfig) -> Figure:
    figure, panels = fitting(
        "What KV memory is used for",
        "Shares of the pool over time; OPT-13B with ShareGPT lengths, SIMULATED; and a tiny "
        "model on a CPU, left bar SIMULATED, right bar MEASURED",
        2,
        plot,
        2.8,
        per_row=1,
    )
    colors = (COLORS[0], COLORS[4], COLORS[1], LIGHT)
    for axes, rows in ((panels[0], data["opt"]), (panels[1], data["tiny"])):
        labels = list(dict.fromkeys(row["allocator"] for row in rows))
        for row in rows:
            place = labels.index(row["allocator"]) + {"simulated": -0.2, "measured": 0.2}.get(row.get("way", ""), 0.0)
            bottom = 0.0
            for part, color in zip(_PARTS, colors, strict=True):
                axes.bar(place, row[part], 0.36 if "way" in row else 0.6, bottom, color=color)
                bottom += row[part]
        axes.set_xticks(range(len(labels)), [_ticks(label) for label in labels], fontsize=7)
        axes.set_ylim(0, 1.05)
        axes.set_ylabel("share of the pool")
    for part, color in zip(_PARTS, colors, strict=True):
        panels[0].bar(0, 0, color=color, label=part)
    figure.legend(
        loc="outside lower center", ncols=len(_PARTS), fontsize=7.5, frameon=False, handlelength=1, columnspacing=1
    )
    head(panels[0], "OPT-13B, 15,728 slots", "SIMULATED")
    head(panels[1], "Tiny model, CPU, 4,096 slots", "SIMULATED and MEASURED")
    return figure


def _ticks(label: str) -> str:
    """The label on two or three short lines, so that it fits under its bars in a column."""
    return label.replace(" ", "\n").replace("max_model_len", "max_\nmodel_\nlen")


CLAIM = Claim(
    "Contiguous reservations waste most of the KV memory",
    "Systems that reserve contiguous memory use 20 to 40 % of it for tokens; paging wastes under 4 %.",
    "Kwon et al., PagedAttention, SOSP 2023, figure 2 and section 1",
    measure,
    judge,
    draw,
)
