"""Block size and seats, swept together over a pool that is too small for the load."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.claims.claim import Claim, Data, Verdict
from experiments.claims.drawing import WAYS, curves, pictured
from experiments.claims.lab import BACKLOG, TINY_TRAFFIC, Lab
from harness.config.schema.tasks.plotting import PlotConfig

_POOL_TOKENS, _SIZES, _SEATS = 65_536, (16, 64, 256, 1024), (32, 128, 512)
_TINY_TOKENS, _TINY_SIZES = 2048, (4, 16, 64, 256)


def measure(lab: Lab) -> Data:
    data: Data = {"h100": [], "tiny": []}
    for size in _SIZES:
        for seats in _SEATS:
            pool = (f"block_size={size}", f"num_blocks={_POOL_TOKENS // size}", f"max_num_seqs={seats}")
            summary = lab.simulate(*BACKLOG, "trace.num_requests=3000", "max_model_len=8192", *pool).summary
            data["h100"].append({"size": size, "seats": seats, "tokens_per_s": summary["output_throughput"],
                                 "running": summary["mean_running"],
                                 "preemptions": summary["preemptions"]})  # fmt: skip
    for size in _TINY_SIZES:
        load = [f"block_size={size}", f"num_blocks={_TINY_TOKENS // size}", "arrival=all_at_once"]
        for way, run in (("simulated", lab.predict), ("measured", lab.serve)):
            running = run(*TINY_TRAFFIC, "trace.num_requests=96", *load).summary["mean_running"]
            data["tiny"].append({"size": size, "way": way, "running": running})
    return data


def judge(data: Data) -> Verdict:
    speeds = {(row["size"], row["seats"]): row["tokens_per_s"] for row in data["h100"]}
    lost = {seats: 1 - speeds[256, seats] / speeds[16, seats] for seats in _SEATS}
    tiny = {(row["way"], row["size"]): row["running"] for row in data["tiny"]}
    listed = ", ".join(f"{share:.0%} with {seats}" for seats, share in lost.items())
    return Verdict(
        "yes",
        f"A pool of {_POOL_TOKENS:,} tokens, a backlog of ShareGPT lengths: blocks of 256 in place of 16 cost "
        f"{listed} seats. Tiny, a pool of {_TINY_TOKENS:,} tokens: {tiny['measured', 4]:.1f} sequences run with "
        f"blocks of 4, {tiny['measured', 256]:.1f} with 256 measured, {tiny['simulated', 4]:.1f} and "
        f"{tiny['simulated', 256]:.1f} simulated.",
        "Where the seats, and not the pool, bound the batch the block size changes nothing; and a kernel that reads "
        "small blocks more slowly is not modelled: here only capacity moves.",
    )


def draw(data: Data, plot: PlotConfig) -> Figure:
    speeds = {f"{seats} seats": [row for row in data["h100"] if row["seats"] == seats] for seats in _SEATS}
    tiny = {label: [row for row in data["tiny"] if row["way"] == way] for way, label in WAYS.items()}
    x = ("size", "tokens per block")
    subtitle = (
        f"A pool of {_POOL_TOKENS:,} tokens (Qwen3-8B on H100, SIMULATED), and of {_TINY_TOKENS:,} "
        "(tiny model on a CPU); all requests at once"
    )
    panels = [
        ("H100", "SIMULATED", curves(speeds, x, ("tokens_per_s", "output tokens/s"), _SIZES)),
        ("Tiny model, CPU", "", curves(tiny, x, ("running", "mean running sequences"), _TINY_SIZES)),
    ]
    figure = pictured(plot, "Block size and seats", subtitle, panels, 3)
    for axes in figure.axes:
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=7.5)
    return figure


CLAIM = Claim(
    "Large blocks cost batch size where memory is short",
    "Small blocks waste less of the pool, so that more sequences run; 16 tokens are small enough. Which block size is "
    "best depends on how many sequences may run.",
    "Kwon et al., PagedAttention, SOSP 2023, section 7.2",
    measure,
    judge,
    draw,
)
