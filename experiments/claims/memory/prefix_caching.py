"""Prefix caching on recorded conversations and on shared system prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from experiments.claims.claim import Claim, Data, Verdict
from experiments.claims.drawing import bars, by_way, pictured
from experiments.claims.lab import Lab
from harness.config.schema.tasks.plotting import PlotConfig

MOONCAKE = Path("../shared/traces/mooncake/conversation_trace.jsonl")
_SHARED = (
    "trace=shared_prefix", "trace.num_requests=80", "trace.num_prefixes=4", "trace.prefix_tokens=320",
    "trace.suffix.high=64", "trace.suffix.low=16", "trace.output.low=8", "trace.output.high=32", "arrival.rate=6",
)  # fmt: skip


def measure(lab: Lab) -> Data:
    data: Data = {"mooncake": [], "shared": [], "tiny": []}
    for cached in (False, True):
        switch = f"scheduler.enable_prefix_caching={str(cached).lower()}"
        if MOONCAKE.exists():
            trace = ("trace=mooncake", f"trace.path={MOONCAKE}", "arrival=trace", "trace.limit=4000")
            node = ("model=llama-3.1-8b", "tensor_parallel_size=8", "device=h100-80gb")
            data["mooncake"].append({"cached": cached, **_figures(lab.simulate(*trace, *node, switch).summary)})
        shared = ("trace=shared_prefix", "trace.num_requests=3000", "arrival.rate=20")
        data["shared"].append({"cached": cached, **_figures(lab.simulate(*shared, switch).summary)})
        for way, run in (("simulated", lab.predict), ("measured", lab.serve)):
            data["tiny"].append({"cached": cached, "way": way, **_figures(run(*_SHARED, switch).summary)})
    return data


def _figures(summary: dict[str, Any]) -> dict[str, float]:
    return {"hit_rate": summary["prefix_cache_hit_rate"], "ttft_ms": summary["mean_ttft_ms"]}


def judge(data: Data) -> Verdict:
    parts = []
    for name, rows in (("Mooncake conversations, Llama-3.1-8B on 8 H100", data["mooncake"]),
                       ("8 system prompts of 1,024 tokens", data["shared"])):  # fmt: skip
        if rows:
            parts.append(f"{name}: {rows[1]['hit_rate']:.0%} of prompt tokens are hits, and the mean TTFT falls from "
                         f"{rows[0]['ttft_ms']:,.0f} to {rows[1]['ttft_ms']:,.0f} ms (simulated).")  # fmt: skip
    tiny = {(row["way"], row["cached"]): row for row in data["tiny"]}
    measured, simulated = tiny["measured", True], tiny["simulated", True]
    parts.append(
        f"Tiny, 4 system prompts: hit rate {measured['hit_rate']:.0%} measured and {simulated['hit_rate']:.0%} "
        f"simulated, TTFT {tiny['measured', False]['ttft_ms']:.0f} to {measured['ttft_ms']:.0f} ms measured, "
        f"{tiny['simulated', False]['ttft_ms']:.0f} to {simulated['ttft_ms']:.0f} simulated."
    )
    return Verdict(
        "yes",
        " ".join(parts),
        "The hit rate of recorded conversations is bounded by the pool: blocks that are evicted before the next turn "
        "do not hit (see the offload tiers). Without repeated prefixes there is nothing to gain, and nothing to lose.",
    )


def draw(data: Data, plot: PlotConfig) -> Figure:
    panels = [
        (
            title, f"SIMULATED, {rows[1]['hit_rate']:.0%} hits",
            bars({"": times}, ["off", "on"], "mean TTFT, ms", [[f"{time:,.0f}" for time in times]]),
        )
        for rows, title in ((data["mooncake"], "Mooncake"), (data["shared"], "System prompts"))
        if (times := [row["ttft_ms"] for row in rows])
    ]  # fmt: skip
    tiny = by_way(data["tiny"], "cached", {False: "off", True: "on"}, "ttft_ms")
    subtitle = "Mean TTFT without and with it. H100: SIMULATED; tiny model on a CPU: SIMULATED and MEASURED"
    return pictured(
        plot, "Prefix caching", subtitle, [*panels, ("Tiny model, CPU", "4 system prompts", tiny)], per_row=3
    )


CLAIM = Claim(
    "Prefix caching saves prefill on real conversations",
    "A large share of the prompt tokens of conversations and of shared system prompts is computed before; keeping "
    "their KV shortens the time to the first token several times.",
    "Zheng et al., SGLang, 2024; Qin et al., Mooncake, FAST 2025",
    measure,
    judge,
    draw,
)
