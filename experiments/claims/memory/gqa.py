"""Bytes of the KV cache with grouped-query and with multi-head attention."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.claims.claim import Claim, Data, Verdict
from experiments.claims.drawing import bars, by_way, pictured
from experiments.claims.lab import BACKLOG, TINY_TRAFFIC, Lab
from harness.config.schema.tasks.plotting import PlotConfig

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
    sizes = [data["derived"][str(heads)] / 1e9 for heads in _KV_HEADS]
    served = {row["kv_heads"]: row["running"] for row in data["served"]}
    subtitle = (
        "32 layers, head_dim 128, 1,000 blocks of 256 tokens, 16 bits; and the "
        "batch that fits an H100 (SIMULATED) and equal bytes of a tiny model on a CPU"
    )
    names = {heads: f"{heads} KV heads" for heads in (4, 1)}
    derived = bars({"": sizes}, list(map(str, _KV_HEADS)), "GB", [[f"{size:.0f}" for size in sizes]])
    running = bars(
        {"": list(served.values())}, [f"{heads} KV heads" for heads in served], "mean running sequences",
        [[f"{number:.0f}" for number in served.values()]],
    )  # fmt: skip
    panels = [
        ("Derived", "KV heads of 32", derived),
        ("H100", "SIMULATED", running),
        ("Tiny model, CPU", "equal bytes of KV cache", by_way(data["tiny"], "kv_heads", names, "running")),
    ]
    return pictured(plot, "KV heads and the size of the KV cache", subtitle, panels, per_row=3)


CLAIM = Claim(
    "8 of 32 KV heads save 75 % of the KV cache",
    "Grouped-query attention with 8 of 32 KV heads needs a quarter of the KV cache. With 32 layers, head_dim 128 and "
    "1,000 blocks of 256 tokens in 16 bits, multi-head attention takes 134 GB.",
    "Ainslie et al., GQA, EMNLP 2023; the sizes follow from the formula",
    measure,
    judge,
    draw,
)
