"""A fleet that was measured behind two routers, simulated: points of the board.

The fleet is that of llm-d's guide "optimized-baseline": 8 servers of vLLM with Qwen3-32B on 2 H100 each. `rr` hands
requests out in turn; `prefix` is llm-d's router, `token_load` with its defaults. Nothing is fitted. The servers have
95 % of the memory, as the guide's manifest says in three copies of it (praveingk/llm-d eb4e79b3, zetxqx/llm-d 1ba0d7a0,
weizhoublue/llm-d f118edc8) and that of the guide "precise-prefix-cache-routing" (34272a62); a later copy leaves it out.
What the manifests do not set is the default of vLLM 0.23, with which the guide was calibrated: 1,024 sequences, 8,192
tokens a step, 40,960 tokens a sequence. Clients reach vLLM's front end.

The load is inference-perf's `guide_optimized-baseline_1`. Its output rate is all tokens of the stage over the time from
its first request to its last token, as the load generator counts. TTFT in turns is not compared: it varies from 0.4 to
25 s between neighbouring rates. TTFT behind the router is told in tenths of a second.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from experiments import PLAIN
from experiments.board.inference_perf import Prompts, shared_prefix
from experiments.board.point import FLEET, Found, Point
from harness import run
from harness.engines.resolving.known_error import run_class
from harness.engines.resolving.system import resolve

_LINK = "https://github.com/llm-d/llm-d/tree/53c5b20a/guides/optimized-baseline/benchmark-results"

SYSTEM = (
    *PLAIN, "frontend=vllm", "frontend.endpoint=completions", "model=qwen3-32b", "device=h100-80gb",
    "tensor_parallel_size=2", "replicas=8", "scheduler=vllm", "block_size=16", "max_num_seqs=1024",
    "max_num_batched_tokens=8192", "max_model_len=40960", "gpu_memory_utilization=0.95", "engine.vllm_version=0.23.0",
)  # fmt: skip
ARMS = {"rr": ["router=round_robin"], "prefix": ["router=token_load"]}
PROMPTS = Prompts(num_groups=150, per_group=5, prefix=6000, question=1200, output=1000, span=400)
WARM_UP = (15, 50)  # requests/s, s: a stage that nobody reports
_QUEUE = 0.5  # s; where the 90th percentile of TTFT is longer, requests wait: one whole prompt takes as long


def points(data: Path, arm: str, every: int = 1) -> Found:
    """A point for each stage of an arm; all of them are one simulation, whatever `every` says."""
    measured = pd.read_csv(data / "router_qwen3_32b_8xTP2_h100.csv")
    ladder = [*measured[["rate", "duration_s"]].itertuples(index=False, name=None)]
    trace, stage_of = shared_prefix([WARM_UP, *ladder], PROMPTS, seed=0)
    found = run(*SYSTEM, *ARMS[arm], "arrival=trace", f"trace.hash_block_size={PROMPTS.span}", trace=trace)
    requests = found.requests
    ttft = 1e3 * (requests["first_token_time"] - requests["arrival_time"])
    stages, waits = requests.groupby(stage_of), ttft.groupby(stage_of)
    took = stages["finish_time"].max() - stages["arrival_time"].min()
    throughput, medians, tails = PROMPTS.output * stages.size() / took, waits.median(), waits.quantile(0.9)
    kind = run_class(resolve(found.config), FLEET)

    def point(name: str, statistic: str, told: dict[str, float], predicted: dict[str, float]) -> Point:
        return Point(
            id=f"router_qwen3_32b:{arm}:{name}", source="llm-d", link=_LINK, engine="vLLM", version="", kind=kind,
            num_gpus=found.config.num_gpus, clients=None, prompt=PROMPTS.prefix + PROMPTS.question,
            output=PROMPTS.output, assumed="order of prompts; share of the memory; version; defaults of vLLM",
            statistic=statistic, measured=told, predicted=predicted,
        )  # fmt: skip

    of_arm = []
    for stage, row in enumerate(measured.to_dict("records"), start=1):
        name = f"{row['rate']:g}/s"
        told, predicted = {"throughput": row[f"{arm}_output_tokens_per_s"]}, {"throughput": throughput[stage]}
        if arm == "prefix" and row["prefix_ttft_p50_s"] > 0:
            told["ttft"], predicted["ttft"] = 1e3 * row["prefix_ttft_p50_s"], medians[stage]
        of_arm.append(point(name, "median", told, predicted))
        if arm == "prefix" and 0 < row["prefix_ttft_p90_s"] <= _QUEUE:
            p90 = {"ttft": 1e3 * row["prefix_ttft_p90_s"]}
            of_arm.append(point(f"{name}:p90", "p90", p90, {"ttft": tails[stage]}))
    return Found(of_arm, {})
