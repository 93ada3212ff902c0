"""KV tiers behind the device on recorded conversations."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.claims.claim import Claim, Data, Verdict
from experiments.claims.drawing import bars, by_way, pictured
from experiments.claims.lab import Lab
from experiments.claims.memory.prefix_caching import MOONCAKE
from harness.config.schema.tasks.plotting import PlotConfig

_GIB = (0, 64, 256, 1024)


def measure(lab: Lab) -> Data:
    data: Data = {"mooncake": [], "tiny": []}
    if MOONCAKE.exists():
        trace = ("trace=mooncake", f"trace.path={MOONCAKE}", "arrival=trace", "arrival.time_scale=2", "block_size=512")
        node = ("model=llama-3.1-8b", "tensor_parallel_size=4", "num_blocks=1024", "trace.limit=4000")
        for gib in _GIB:
            summary = lab.simulate(*trace, *node, *_tier(gib)).summary
            data["mooncake"].append({"gib": gib, "hit_rate": summary["prefix_cache_hit_rate"],
                                     "ttft_ms": summary["mean_ttft_ms"]})  # fmt: skip
    chats = (
        "trace=shared_prefix", "trace.num_requests=80", "trace.num_prefixes=12", "trace.prefix_tokens=320",
        "trace.suffix.low=16", "trace.suffix.high=64", "trace.output.low=8", "trace.output.high=24", "arrival.rate=4",
        "num_blocks=130",
    )  # fmt: skip
    for gib in (0, 1):
        for way, run in (("simulated", lab.predict), ("measured", lab.serve)):
            summary = run(*chats, *_tier(gib)).summary
            data["tiny"].append({"gib": gib, "way": way, "hit_rate": summary["prefix_cache_hit_rate"],
                                 "ttft_ms": summary["mean_ttft_ms"]})  # fmt: skip
    return data


def _tier(gib: int) -> list[str]:
    return ["tiers=host", f"tiers.host.gib={gib}", "tiers.offload=true"] if gib else []


def judge(data: Data) -> Verdict:
    parts = []
    if rows := data["mooncake"]:
        listed = ", ".join(
            f"{row['hit_rate']:.0%} and {row['ttft_ms']:,.0f} ms with {row['gib']:,} GiB" for row in rows
        )
        parts.append(
            "Mooncake conversations at half their rate, Llama-3.1-8B on 4 H100 with 1,024 blocks of 512 tokens, "
            f"simulated hit rate and mean TTFT: {listed}."
        )
    tiny = {(row["way"], row["gib"]): row for row in data["tiny"]}
    parts.append(
        f"Tiny, a pool that holds a third of the prefixes: hit rate {tiny['measured', 0]['hit_rate']:.0%} to "
        f"{tiny['measured', 1]['hit_rate']:.0%} measured, {tiny['simulated', 0]['hit_rate']:.0%} to "
        f"{tiny['simulated', 1]['hit_rate']:.0%} simulated."
    )
    return Verdict(
        "partly",
        " ".join(parts),
        "Hits rise before latency falls: a step waits for all blocks that leave the device, so a tier that seldom hits "
        "costs more than it brings. What the traffic repeats bounds the hits; beyond that memory brings nothing.",
    )


def draw(data: Data, plot: PlotConfig) -> Figure:
    rows = data["mooncake"]
    hits = {"": [100 * row["hit_rate"] for row in rows]}
    texts = [[f"TTFT {row['ttft_ms']:,.0f} ms" for row in rows]]
    tiny = [{**row, "hits": 100 * row["hit_rate"]} for row in data["tiny"]]
    names = {0: "device only", 1: "with a host tier"}
    ticks = [f"{row['gib']:,} GiB" for row in rows]
    panels = [
        ("Mooncake, Llama-3.1-8B on 4 H100", "SIMULATED", bars(hits, ticks, "hits, % of prompt tokens", texts)),
        ("Tiny model, CPU", "12 system prompts, room for 4", by_way(tiny, "gib", names, "hits")),
    ]
    subtitle = "Blocks that leave the device's prefix cache go to the host and come back with hits"
    return pictured(plot, "KV blocks in host memory", subtitle, panels if rows else panels[1:], 2.9)


CLAIM = Claim(
    "Host memory behind the KV cache raises the hits of conversations",
    "Conversations come back after their blocks were evicted; keeping evicted blocks in host memory turns these "
    "misses into hits.",
    "Gao et al., CachedAttention, USENIX ATC 2024; Qin et al., Mooncake, FAST 2025",
    measure,
    judge,
    draw,
)
