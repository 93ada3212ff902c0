"""A fleet with servers for prompts and for decodes that was measured, simulated: points of the board.

The fleet is that of llm-d's guide "pd-disaggregation" with CPU tiers: gpt-oss-120b on H200, 8 servers of vLLM 0.27.1
for prompts (one GPU each) and 2 for decodes (4 GPUs each), KV over RDMA with NIXL, blocks of 128 tokens. The router
has the scores of the guide: prefix 3, queue 2, KV use 2 for prompts, active requests for decodes. Nothing is fitted.
What the manifests do not set is vLLM's default on this device: 1,024 sequences, 8,192 tokens a step, 131,072 tokens a
sequence. The router reads metrics every 50 ms, as its endpoint picker does by default, and reads what each server sent
with the outputs of its last step. A request passes vLLM's front end on both of its servers, and before the router
chooses that of one of those for prompts, which tokenises it for the router (`render/multi-tier/service.yaml` of the
guide). Assumed: the network's rate and latency, as in conf/network/rdma_400g.yaml.

`random` is 5,400 prompts of 5,000 tokens that share nothing, at 45 requests/s. `eviction` is 1,000 groups of 5 prompts
with 16,000 tokens in common, 1.3 times what the servers' KV pools hold, in Poisson stages of 60 s from 5 to 40
requests/s (`inference_perf.py`). Half of the model's layers have a sliding window, and vLLM keeps what they
computed of a prefix in the same pool as the rest, until it is evicted (`engine/core/kv/block_pool.py`). Three arms:
without tiers (`nixl`), with 100 GiB of host memory for each server for prompts that the router does not see
(`cpu_blind`), and that it counts with 0.4 (`cpu_aware`). vLLM's OffloadingConnector copies there what is computed, and
not what leaves the device, which would then hold other blocks: each of these servers has a store of its own, over the
network's link, whose rate is about that of PCIe 5.

The servers for prompts of `eviction` have the KV pool that they reported, 1,630,790 tokens. vLLM 0.27 prints
max_model_len times the requests of that length that fit (`get_kv_cache_capacity`). One of 131,072 tokens holds 1,024
pages of 128 tokens in layers without a window, and in those with one 130: the window and the tokens of two steps, one
of which is planned ahead (`max_admission_blocks_per_request`). So a server has 14,358 pages, of 18 layers each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments import PLAIN
from experiments.board.inference_perf import Prompts, constant, shared_prefix
from experiments.board.point import Found, Point
from harness import run
from harness.config.pools import pools_of
from harness.engines.resolving.known_error import APART, run_class
from harness.engines.resolving.system import resolve
from harness.studies.outcome import Run

_LINK = "https://github.com/llm-d/llm-d/tree/3cfabd6a/guides/pd-disaggregation/benchmark-results"

SYSTEM = (
    *PLAIN, "frontend=vllm", "model=gpt-oss-120b", "device=h200", "scheduler=vllm", "block_size=128",
    "max_num_seqs=1024", "max_num_batched_tokens=8192", "fleet=disaggregated", "fleet.prefill.replicas=8",
    "fleet.decode.replicas=2", "fleet.decode.tensor_parallel_size=4", "router=weighted_score",
    "router.options.precise=true", "router.view_delay_ms=50", "router.view_of_steps=true", "router.renders=true",
    "arrival=trace", "engine.vllm_version=0.27.1",
)  # fmt: skip
PAGES, PAGE_BYTES = 14_358, 128 * 18 * 2 * 8 * 64 * 2
_WINDOWS_BYTES = (1024 * (128 + 128) + 8192) * PAGE_BYTES // 128  # that the simulation sets apart, and vLLM does not
POOL = f"fleet.prefill.kv_cache_memory_bytes={PAGES * PAGE_BYTES + _WINDOWS_BYTES}"
HOST = "fleet.prefill.tiers={store:{gib:100,servers:1},offload:true}"
ARMS = {"nixl": [], "cpu_blind": [HOST], "cpu_aware": [HOST, "router.options.host=0.4"]}
PROMPTS = Prompts(num_groups=1000, per_group=5, prefix=16000, question=256, output=256, span=128)
STAGE = 60.0  # s
RANDOM = {"num_prompt_tokens": 5000, "num_output_tokens": 250}


def random(data: Path, every: int = 1) -> Found:
    """The point of `random`."""
    arrivals = constant(45, 120, np.random.default_rng(0))
    found = run(*SYSTEM, trace=pd.DataFrame({"arrival_time": arrivals, **RANDOM}))
    requests = found.requests
    rows = pd.read_csv(data / "pd_gpt_oss_120b_h200_random.csv")
    row: dict[Any, Any] = rows[rows["arm"] == "nixl"].to_dict("records")[0]
    took = requests["finish_time"].max() - arrivals[0]
    predicted = {
        "throughput": RANDOM["num_output_tokens"] * len(requests) / took,
        "e2el": 1e3 * requests["e2el"].mean(),
        "ttft": 1e3 * requests["ttft"].mean(),
    }
    measured = {
        "throughput": RANDOM["num_output_tokens"] * row["requests_per_s"],
        "e2el": 1e3 * row["mean_latency_s"],
        "ttft": 1e3 * row["mean_ttft_s"],
    }
    return Found([_point(found, "random", RANDOM["num_prompt_tokens"], "mean", measured, predicted)], {})


def eviction(data: Path, arm: str, every: int = 1) -> Found:
    """A point for each stage of an arm of `eviction`; all of them are one simulation, whatever `every` says."""
    measured = pd.read_csv(data / "pd_gpt_oss_120b_h200_eviction.csv")
    frame, stage_of = shared_prefix([(rate, STAGE) for rate in measured["target_rate"]], PROMPTS, seed=0)
    found = run(*SYSTEM, POOL, *ARMS[arm], f"trace.hash_block_size={PROMPTS.span}", trace=frame)
    stages = found.requests.groupby(stage_of)
    took = stages["finish_time"].max() - stages["arrival_time"].min()
    throughput, p90 = PROMPTS.output * stages.size() / took, 1e3 * stages["e2el"].quantile(0.9)
    of_arm = []
    for stage, row in enumerate(measured.to_dict("records")):
        told = {"throughput": PROMPTS.output * row[f"{arm}_requests_per_s"], "e2el": 1e3 * row[f"{arm}_p90_latency_s"]}
        predicted = {"throughput": float(throughput[stage]), "e2el": float(p90[stage])}
        name = f"eviction:{arm}:{row['target_rate']:g}/s"
        of_arm.append(_point(found, name, PROMPTS.prefix + PROMPTS.question, "p90", told, predicted))
    return Found(of_arm, {})


def _point(
    found: Run, name: str, prompt: int, statistic: str, measured: dict[str, float], predicted: dict[str, float]
) -> Point:
    _, first = next(iter(pools_of(found.config)))
    return Point(
        id=f"pd_gpt_oss_120b:{name}", source="llm-d", link=_LINK, engine="vLLM", version="0.27.1",
        kind=run_class(resolve(first), APART), num_gpus=found.config.num_gpus, clients=None, prompt=prompt,
        output=PROMPTS.output, assumed="rate and latency of the network; defaults of vLLM", statistic=statistic,
        measured=measured, predicted=predicted,
    )  # fmt: skip
