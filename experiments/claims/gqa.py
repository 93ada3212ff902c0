"""Bytes of the KV cache with grouped-query and with multi-head attention."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.claims.claim import Claim, Data, Verdict
from experiments.claims.drawing import legend_above
from experiments.claims.lab import BACKLOG, TINY_TRAFFIC, Lab
from harness.config.schema.tasks.plotting import PlotConfig
from harness.figures.style import COLORS, fitting, head

_LAYERS, _HEAD_DIM, _HEADS, _BLOCK_SIZE, _BLOCKS = 32, 128, 32, 256, 1000
_KV_HEADS = (32, 8, 4, 1)


def kv_bytes(num_kv_heads: int, bytes_per_element: int = 2) -> int:
    """Of the cache of the claim: keys and values of all layers, KV heads and token slots."""
    return 2 * _LAYERS * num_kv_heads * _HEAD_DIM * bytes_per_element * _BLOCK_SIZE * _BLOCKS


def measure(lab: Lab) -> Data:
    data: Data = {"derived": {str(heads): kv_bytes(heads) for heads in _KV_HEADS}, "served": [], "tiny": []}
    shape = ("model.num_layers=32", "model.head_dim=128", "model.num_attention_heads=32", "cost=roofline")
    for heads in (32, 8):
        outcome = lab.simulate(*BACKLOG, "trace.num_requests=3000", *shape, f"model.num_kv_heads={heads}")
        summary = outcome.summary
        data["served"].append(
            {"kv_heads": heads, "pool_tokens": summary["num_blocks"] * summary["block_size"],
             "running": summary["mean_running"], "tokens_per_s": summary["output_throughput"]}
        )  # fmt: skip
    for heads in (4, 1):
        for way, run in (("simulated", lab.predict), ("measured", lab.serve)):
            # As many bytes of KV cache, and so 4 times the blocks with a quarter of the heads.
            settings = ["scheduler.victim=last", f"model.num_kv_heads={heads}", f"num_blocks={360 // heads}"]
            cost = ["cost=roofline"] if way == "simulated" else []
            outcome = run(*TINY_TRAFFIC, "trace.num_requests=96", "arrival=all_at_once", *settings, *cost)
            data["tiny"].append({"kv_heads": heads, "way": way, "running": outcome.summary["mean_running"]})
    return data


def judge(data: Data) -> Verdict:
    mha, gqa = data["derived"]["32"], data["derived"]["8"]
    served = {row["kv_heads"]: row for row in data["served"]}
    tiny = {(row["way"], row["kv_heads"]): row["running"] for row in data["tiny"]}
    return Verdict(
        "yes",
        f"2 x 32 layers x 32 heads x 128 x 2 bytes x 256 x 1,000 slots = {mha / 1e9:.1f} GB with 32 KV heads, "
        f"{gqa / 1e9:.1f} GB with 8: {1 - gqa / mha:.0%} less. On an H100 the pool holds "
        f"{served[32]['pool_tokens']:,} tokens or {served[8]['pool_tokens']:,}, and a backlog of ShareGPT lengths "
        f"keeps {served[32]['running']:.0f} or {served[8]['running']:.0f} sequences running, at "
        f"{served[32]['tokens_per_s']:,.0f} or {served[8]['tokens_per_s']:,.0f} tokens/s. Tiny, pools of equal bytes, "
        f"4 KV heads against 1: {tiny['measured', 4]:.1f} against {tiny['measured', 1]:.1f} running measured, "
        f"{tiny['simulated', 4]:.1f} against {tiny['simulated', 1]:.1f} simulated.",
        "Sources that give 1 GB for the cache of 32 heads are wrong. The batch grows until seats, arrivals or "
        "arithmetic bound it; tensor parallelism beyond the number of KV heads copies them and saves nothing more.",
    )


def draw(data: Data, plot: PlotConfig) -> Figure:
    figure, panels = fitting(
        "KV heads and the size of the KV cache",
        "32 layers, head_dim 128, 1,000 blocks of 256 tokens, 16 bits; and the "
        "batch that fits an H100 (SIMULATED) and equal bytes of a tiny model on a CPU",
        3,
        plot,
        2.8,
        per_row=3,
    )
    sizes = [data["derived"][str(heads)] / 1e9 for heads in _KV_HEADS]
    bars = panels[0].bar(range(len(sizes)), sizes, color=COLORS[0])
    panels[0].bar_label(bars, [f"{size:.0f}" for size in sizes], fontsize=8)
    panels[0].set_xticks(range(len(sizes)), map(str, _KV_HEADS))
    panels[0].set_ylabel("GB")
    panels[0].set_xlabel("KV heads of 32")
    head(panels[0], "Derived")
    bars = panels[1].bar([0, 1], [row["running"] for row in data["served"]], 0.6, color=COLORS[0])
    panels[1].bar_label(bars, [f"{row['running']:.0f}" for row in data["served"]], fontsize=8)
    panels[1].set_xticks([0, 1], [f"{row['kv_heads']} KV heads" for row in data["served"]])
    panels[1].set_ylabel("mean running sequences")
    head(panels[1], "H100", "SIMULATED")
    for index, heads in enumerate((4, 1)):
        running = [row["running"] for row in data["tiny"] if row["kv_heads"] == heads]
        panels[2].bar([0.4 * index, 1 + 0.4 * index], running, 0.38, color=COLORS[index], label=f"{heads} KV heads")
    panels[2].set_xticks([0.2, 1.2], ["SIMULATED", "MEASURED"])
    legend_above(panels[2], columns=1)
    head(panels[2], "Tiny model, CPU", "equal bytes of KV cache")
    return figure


CLAIM = Claim(
    "8 of 32 KV heads save 75 % of the KV cache",
    "Grouped-query attention with 8 of 32 KV heads needs a quarter of the KV cache. With 32 layers, head_dim 128 and "
    "1,000 blocks of 256 tokens in 16 bits, multi-head attention takes 134 GB.",
    "Ainslie et al., GQA, EMNLP 2023; the sizes follow from the formula",
    measure,
    judge,
    draw,
)
