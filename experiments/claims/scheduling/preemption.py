"""What a preempted sequence keeps: nothing, a prefix, or a copy in host memory."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.claims.claim import Claim, Data, Verdict
from experiments.claims.drawing import WAYS, bars, pictured
from experiments.claims.lab import BACKLOG, TINY_TRAFFIC, Lab
from harness.config.schema.tasks.plotting import PlotConfig

_MODES = ("recompute", "partial", "swap", "auto")
_SIZES = (16, 64, 256)


def measure(lab: Lab) -> Data:
    data: Data = {"h100": [], "tiny": []}
    for size in _SIZES:
        pool = (f"block_size={size}", f"num_blocks={40_960 // size}", "max_model_len=8192", "scheduler.watermark=0")
        for mode in _MODES:
            settings = (*BACKLOG, "trace.num_requests=2000", *pool, *_mode(mode))
            summary = lab.simulate(*settings).summary
            data["h100"].append({"mode": mode, "size": size, "tokens_per_s": summary["output_throughput"],
                                 "preemptions": summary["preemptions"],
                                 "recomputed": summary["recomputed_tokens"]})  # fmt: skip
    pool = ("num_blocks=90", "scheduler.watermark=0", "arrival=all_at_once", "trace.num_requests=96")
    for mode in ("recompute", "partial", "swap"):
        for way, run in (("simulated", lab.predict), ("measured", lab.serve)):
            summary = run(*TINY_TRAFFIC, *pool, *_mode(mode)).summary
            data["tiny"].append({"mode": mode, "way": way, "tokens_per_s": summary["output_throughput"],
                                 "recomputed": summary["recomputed_tokens"]})  # fmt: skip
    return data


def _mode(mode: str) -> list[str]:
    host = ["tiers=host", "tiers.host.gib=8"] if mode in ("swap", "auto") else []
    return [f"scheduler.preemption={mode}", "scheduler.enable_prefix_caching=false", *host]


def judge(data: Data) -> Verdict:
    speed = {(row["mode"], row["size"]): row["tokens_per_s"] for row in data["h100"]}
    gains = {size: speed["swap", size] / speed["recompute", size] - 1 for size in _SIZES}
    partial = {size: speed["partial", size] / speed["recompute", size] - 1 for size in _SIZES}
    tiny = {(row["way"], row["mode"]): row for row in data["tiny"]}
    listed = ", ".join(f"{gains[size]:+.1%} ({size})" for size in _SIZES)
    kept = ", ".join(f"{partial[size]:+.1%} ({size})" for size in _SIZES)
    return Verdict(
        "yes" if gains[_SIZES[-1]] > 0 > gains[_SIZES[0]] else "no",
        "A pool of 40,960 tokens, a backlog of ShareGPT lengths, simulated throughput relative to recomputation by "
        f"block size: swap {listed}; a kept prefix {kept}. Tiny: {tiny['measured', 'recompute']['recomputed']:,} "
        f"tokens are computed again measured, {tiny['simulated', 'recompute']['recomputed']:,} simulated; with a kept "
        f"prefix {tiny['measured', 'partial']['recomputed']:,} and {tiny['simulated', 'partial']['recomputed']:,}.",
        "The link decides: swapping pays where a block moves faster than its tokens are computed again. Our link is "
        "priced by bytes alone; small blocks cost a real one more per byte, so the claim's crossover is not seen here.",
    )


def draw(data: Data, plot: PlotConfig) -> Figure:
    speeds = {mode: [row["tokens_per_s"] for row in data["h100"] if row["mode"] == mode] for mode in _MODES}
    tiny = {mode: [row["tokens_per_s"] for row in data["tiny"] if row["mode"] == mode] for mode in _MODES[:3]}
    subtitle = (
        "Output tokens/s of a backlog of ShareGPT lengths in a pool of 40,960 tokens (Qwen3-8B on "
        "H100, SIMULATED), and of a tiny model on a CPU"
    )
    panels = [
        ("H100", "SIMULATED", bars(speeds, [f"blocks of {size}" for size in _SIZES], "output tokens/s")),
        ("Tiny model, CPU", "", bars(tiny, list(WAYS.values()), legend_columns=None)),
    ]
    return pictured(plot, "Preemption under pressure", subtitle, panels, 3)


CLAIM = Claim(
    "Swapping pays with large blocks, recomputing with small ones",
    "Recovering a preempted request by recomputation costs the same whatever the block size, and swapping is slow with "
    "small blocks; between 16 and 64 tokens both are alike.",
    "Kwon et al., PagedAttention, SOSP 2023, section 7.3",
    measure,
    judge,
    draw,
)
