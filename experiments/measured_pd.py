"""How far off is a simulated fleet with servers for prompts and for decodes from one that was measured?

    python -m experiments.measured_pd --data ../shared/ground_truth/llm_d

The fleet is that of llm-d's guide "pd-disaggregation" with CPU tiers: gpt-oss-120b on H200, 8 servers of vLLM 0.27
for prompts (one GPU each) and 2 for decodes (4 GPUs each), KV over RDMA with NIXL, blocks of 128 tokens. The router
has the scores of the guide: prefix 3, queue 2, KV use 2 for prompts, active requests for decodes. Nothing is fitted.
What the manifests do not set is vLLM's default on this device: 1,024 sequences, 8,192 tokens a step, 131,072 tokens a
sequence. The router reads metrics every 50 ms, as its endpoint picker does by default. Assumed: the network's rate
and latency, as in conf/network/rdma_400g.yaml.

`random` is 5,400 prompts of 5,000 tokens that share nothing, at 45 requests/s. `eviction` is 1,000 groups of 5
prompts with 16,000 tokens in common, 1.3 times what the servers' KV pools hold, in Poisson stages of 60 s from 5 to
40 requests/s with pauses of 60 s. Half of the model's layers have a sliding window, and vLLM keeps what they computed
of a prefix in the same pool as the rest, until it is evicted: 128 tokens of a cached prefix take two of the 12,740
blocks that a server for prompts reported (1,630,790 tokens), and so they do here. Three arms: without tiers
(`nixl`), with 100 GiB of host memory for each server for prompts that the router does not see (`cpu_blind`), and that
it counts with 0.4 (`cpu_aware`). Results go to experiments/results/measured_pd*.json.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from experiments.measured_fleet import Prompts, arguments, store
from harness import run

SYSTEM = (
    "model=gpt-oss-120b", "device=h200", "scheduler=vllm", "block_size=128", "max_num_seqs=1024",
    "max_num_batched_tokens=8192", "fleet=disaggregated", "fleet.prefill.replicas=8", "fleet.decode.replicas=2",
    "fleet.decode.tensor_parallel_size=4", "router=weighted_score", "router.options.precise=true",
    "router.view_delay_ms=50", "arrival=trace",
)  # fmt: skip
HOST = "fleet.prefill.tiers={host:{gib:100},offload:true}"
ARMS = {"nixl": [], "cpu_blind": [HOST], "cpu_aware": [HOST, "router.options.host=0.4"]}
PROMPTS = Prompts(num_groups=1000, per_group=5, prefix=16000, question=256, output=256, span=128)
STAGE, PAUSE = 60.0, 60.0  # s
RANDOM = {"num_prompt_tokens": 5000, "num_output_tokens": 250}


def random(seed: int, overrides: list[str]) -> dict[str, float]:
    """The measures of `random`, simulated."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / 45, 5400))
    requests = run(*SYSTEM, *overrides, trace=pd.DataFrame({"arrival_time": arrivals, **RANDOM})).requests
    latency, ttft = requests["e2el"], requests["ttft"]
    return {
        "requests_per_s": len(requests) / (requests["finish_time"].max() - arrivals[0]),
        "mean_latency_s": latency.mean(),
        "p95_latency_s": latency.quantile(0.95),
        "p99_latency_s": latency.quantile(0.99),
        "mean_ttft_s": ttft.mean(),
        "p95_ttft_s": ttft.quantile(0.95),
    }


def eviction(rates: list[float], arm: str, seed: int, overrides: list[str]) -> tuple[pd.DataFrame, dict[str, float]]:
    """Of each stage requests/s and the 90th percentile of the latency; and the means of all."""
    rng = np.random.default_rng(seed)
    counts = [round(rate * STAGE) for rate in rates]
    stage_of = np.repeat(np.arange(len(rates)), counts)
    starts = np.arange(len(rates)) * (STAGE + PAUSE)
    times = [
        start + np.sort(rng.uniform(0, STAGE, count)) for start, count in zip(starts, counts, strict=True)
    ]  # of a Poisson process with so many arrivals
    order = np.resize(rng.permutation(PROMPTS.num_groups * PROMPTS.per_group), len(stage_of))
    frame = pd.DataFrame({"arrival_time": np.concatenate(times)})
    frame["num_prompt_tokens"], frame["num_output_tokens"] = PROMPTS.prefix + PROMPTS.question, PROMPTS.output
    frame["hash_ids"] = [PROMPTS.identities(int(prompt)) for prompt in order]
    settings = [*SYSTEM, *ARMS[arm], f"trace.hash_block_size={PROMPTS.span}", *overrides]
    requests = run(*settings, trace=frame).requests
    stages = requests.groupby(stage_of)
    took = stages["finish_time"].max() - stages["arrival_time"].min()
    found = pd.DataFrame({"requests_per_s": stages.size() / took, "p90_latency_s": stages["e2el"].quantile(0.9)})
    means = {"mean_ttft_s": requests["ttft"].mean(), "mean_latency_s": requests["e2el"].mean()}
    return found, {name: float(value) for name, value in means.items()}


def show(measured: pd.DataFrame, found: dict[str, pd.DataFrame]) -> Table:
    titles = [f"{arm}, {text}" for arm in found for text in ("requests/s", "p90 latency, s")]
    table = Table("target", *titles, box=None, title="eviction: simulated (measured)")
    for stage, row in enumerate(measured.to_dict("records")):
        cells = [
            f"{found[arm][name][stage]:.2f} ({row[f'{arm}_{name}']:.2f})"
            for arm in found
            for name in ("requests_per_s", "p90_latency_s")
        ]
        table.add_row(f"{row['target_rate']}", *cells)
    return table


def main() -> None:
    args = arguments(__doc__)
    console = Console(width=180)
    drawn = random(args.seed, args.overrides)
    rows = pd.read_csv(args.data / "pd_gpt_oss_120b_h200_random.csv").set_index("arm").loc["nixl"]
    for name, value in drawn.items():
        console.print(f"random: {name} {value:.3f}, measured {rows[name]:.3f} ({value / rows[name] - 1:+.1%})")
    measured = pd.read_csv(args.data / "pd_gpt_oss_120b_h200_eviction.csv")
    rates = measured["target_rate"].tolist()
    both = {arm: eviction(rates, arm, args.seed, args.overrides) for arm in ARMS}
    console.print(show(measured, {arm: stages for arm, (stages, _) in both.items()}))
    for arm, (_, means) in both.items():
        console.print(f"eviction, {arm}: " + ", ".join(f"{name} {value:.3f}" for name, value in means.items()))
    arms = {arm: {**stages.round(4).to_dict("list"), **means} for arm, (stages, means) in both.items()}
    store("measured_pd", args.overrides, {"random": drawn, "rates": rates, "eviction": arms})


if __name__ == "__main__":
    main()
