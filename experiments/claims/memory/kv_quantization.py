"""The KV cache in 8 and in 4 bits."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.claims.claim import Claim, Data, Verdict
from experiments.claims.drawing import WAYS, bars, pictured
from experiments.claims.lab import BACKLOG, TINY_TRAFFIC, Lab
from harness.config.schema.tasks.plotting import PlotConfig

_LABELS = {"auto": "model's", "fp8": "fp8", "int8": "int8", "int4": "int4"}
_TINY_BYTES = 3 << 20  # of the KV pool


def measure(lab: Lab) -> Data:
    from experiments.claims.memory import kv_error  # imported late, as it brings torch

    errors = kv_error.measure(kv_error.tiny(), 8, 256)
    data: Data = {"h100": [], "tiny": [], "errors": errors}
    for dtype in _LABELS:
        cache = (f"engine.kv_cache_dtype={dtype}", "gpu_memory_utilization=0.35", "max_num_seqs=1024")
        summary = lab.simulate(*BACKLOG, "trace.num_requests=4000", *cache, "cost=roofline").summary
        data["h100"].append({"dtype": dtype, "pool_tokens": summary["num_blocks"] * summary["block_size"],
                             "running": summary["mean_running"],
                             "tokens_per_s": summary["output_throughput"]})  # fmt: skip
        num_blocks = _TINY_BYTES // errors[dtype]["block_bytes"]
        load = (*TINY_TRAFFIC, "trace.num_requests=96", "arrival=all_at_once", f"num_blocks={num_blocks}")
        for way, run, cost in (("simulated", lab.predict, ["cost=roofline"]), ("measured", lab.serve, [])):
            running = run(*load, f"engine.kv_cache_dtype={dtype}", *cost).summary["mean_running"]
            data["tiny"].append({"dtype": dtype, "way": way, "running": running})
    return data


def judge(data: Data) -> Verdict:
    rows = {row["dtype"]: row for row in data["h100"]}
    tiny = {(row["way"], row["dtype"]): row["running"] for row in data["tiny"]}
    pools = ", ".join(f"{row['pool_tokens']:,} ({_LABELS[name]})" for name, row in rows.items())
    running = ", ".join(f"{row['running']:.0f}" for row in rows.values())
    speeds = ", ".join(f"{row['tokens_per_s']:,.0f}" for row in rows.values())
    return Verdict(
        "partly",
        f"Pools of equal memory (an H100 of which 35 % may be used) hold {pools} tokens; a backlog of ShareGPT "
        f"lengths keeps {running} sequences running, at {speeds} tokens/s (simulated, roofline). Tiny, pools of 3 "
        f"MiB: {tiny['measured', 'auto']:.1f}, {tiny['measured', 'int8']:.1f} and {tiny['measured', 'int4']:.1f} run "
        f"with float32, int8 and int4 measured, {tiny['simulated', 'auto']:.1f}, {tiny['simulated', 'int8']:.1f} and "
        f"{tiny['simulated', 'int4']:.1f} simulated. Of next tokens with random weights, "
        f"{data['errors']['fp8']['top1']:.0%} (fp8), {data['errors']['int8']['top1']:.0%} (int8) and "
        f"{data['errors']['int4']['top1']:.0%} (int4) stay the most likely ones.",
        "Scales take a part: int4 with one float16 per token and head takes 0.26 of 16 bits, not 0.25. Beyond the "
        "seats or the load a larger pool brings nothing. The error of random weights shows the arithmetic, and says "
        "nothing about trained models.",
    )


def draw(data: Data, plot: PlotConfig) -> Figure:
    labels = list(_LABELS.values())
    tiny = {label: [row["running"] for row in data["tiny"] if row["way"] == way] for way, label in WAYS.items()}
    subtitle = (
        "Sequences that run at the same time in pools of equal memory: Qwen3-8B on an H100 of which 35 % may be used, "
        "SIMULATED; 3 MiB for a tiny model on a CPU"
    )
    panels = [
        ("Running, H100", "SIMULATED", bars({"": [row["running"] for row in data["h100"]]}, labels)),
        ("Output tokens/s, H100", "SIMULATED", bars({"": [row["tokens_per_s"] for row in data["h100"]]}, labels)),
        ("Running, tiny model", "", bars(tiny, labels, legend_columns=1)),
    ]
    return pictured(plot, "The KV cache in fewer bits", subtitle, panels, per_row=3)


CLAIM = Claim(
    "A KV cache of 8 or 4 bits doubles or quadruples the batch",
    "Keys and values in 8 bits take half of the memory and in 4 bits a quarter, at little loss, so that more "
    "sequences run.",
    "Sheng et al., FlexGen, ICML 2023; Hooper et al., KVQuant, NeurIPS 2024",
    measure,
    judge,
    draw,
)
