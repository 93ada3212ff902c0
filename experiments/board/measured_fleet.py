"""A fleet that was measured behind routers, simulated: points of the board.

The fleet is that of llm-d's guide "optimized-baseline": 8 servers of vLLM with Qwen3-32B on 2 H100 each. Nothing is
fitted. The servers have 95 % of the memory, as the guide's manifest says in three copies of it (praveingk/llm-d
eb4e79b3, zetxqx/llm-d 1ba0d7a0, weizhoublue/llm-d f118edc8) and that of the guide "precise-prefix-cache-routing"
(34272a62); a later copy leaves it out. What the manifests do not set is the default of vLLM 0.23, with which the guide
was calibrated: 1,024 sequences, 8,192 tokens a step, 40,960 tokens a sequence. Clients reach vLLM's front end.

Two reports of it, each with two arms: `rr`, a Service of Kubernetes, which the reports say takes turns and whose
kube-proxy chooses at random (its iptables mode); and `prefix`, llm-d's router:

    token_load   53c5b20a; `token_load` with its defaults, as the guide has it since June 2026
    weighted     021723b8, before that: the scores of prefix, queue, KV use and `no-hit-lru-scorer`, 3, 2, 2 and 2, by
                 metrics that are read every 50 ms; in llm_d_weighted.csv

The load is inference-perf's `guide_optimized-baseline_1`. Its output rate is all tokens of the stage over the time from
its first request to its last token, as the load generator counts. Who gets which prefixes is a draw behind
`token_load`, which counts no decodes: its rates are means, and its waits medians, of `_DRAWS` orders of the prompts. In
the second report prompts are longer than the load says, as its inference-perf 0.4 decodes random tokens, whose text
takes more (fixed in 5da7e16): runs of that harness on this fleet tell 15.99 requests/s with 16,128.6 tokens/s of output
and 137,355.0 in all, which is 7,581 tokens a prompt. TTFT is compared where requests do not wait; in the first report
it is told in tenths of a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from experiments import PLAIN
from experiments.board.inference_perf import Prompts, shared_prefix
from experiments.board.point import FLEET, Found, Point
from harness import run
from harness.engines.resolving.known_error import run_class
from harness.engines.resolving.system import resolve
from harness.studies.outcome import Run

SYSTEM = (
    *PLAIN, "frontend=vllm", "frontend.endpoint=completions", "model=qwen3-32b", "device=h100-80gb",
    "tensor_parallel_size=2", "replicas=8", "scheduler=vllm", "block_size=16", "max_num_seqs=1024",
    "max_num_batched_tokens=8192", "max_model_len=40960", "gpu_memory_utilization=0.95", "engine.vllm_version=0.23.0",
)  # fmt: skip
WARM_UP = (15, 50)  # requests/s, s: a stage that nobody reports
_TREE = "https://github.com/llm-d/llm-d/tree"
_SERVICE, _TOKEN_LOAD = ("router=random",), ("router=token_load",)
_WEIGHTED = (
    "router=weighted_score", "router.options.no_hit_lru=2", "router.view_delay_ms=50", "router.view_of_steps=true"
)  # fmt: skip
_DRAWS = 8
_QUEUE = 0.5  # s; where the 90th percentile of TTFT is longer, requests wait: one whole prompt takes as long


@dataclass(frozen=True)
class Report:
    """A report of the fleet.

    Attributes:
        id: of its rows, before the arm.
        link: where it is published.
        file: its table; in the folder of llm-d's data, or whole.
        prompts: of its load.
        arms: the router of each.
        middle: what it tells of TTFT beside the 90th percentile.
    """

    id: str
    link: str
    file: Path
    prompts: Prompts
    arms: Mapping[str, tuple[str, ...]]
    middle: str


REPORTS = {
    "token_load": Report(
        "router_qwen3_32b", f"{_TREE}/53c5b20a/guides/optimized-baseline/benchmark-results",
        Path("router_qwen3_32b_8xTP2_h100.csv"),
        Prompts(num_groups=150, per_group=5, prefix=6000, question=1200, output=1000, span=400),
        {"rr": _SERVICE, "prefix": _TOKEN_LOAD}, "p50",
    ),
    "weighted": Report(
        "router_qwen3_32b_weighted", f"{_TREE}/021723b8/guides/optimized-baseline",
        Path(__file__).with_name("llm_d_weighted.csv"),
        Prompts(num_groups=150, per_group=5, prefix=6304, question=1264, output=1000, span=16),
        {"rr": _SERVICE, "prefix": _WEIGHTED}, "mean",
    ),
}  # fmt: skip


def points(data: Path, report: str, arm: str, every: int = 1) -> Found:
    """A point for each stage of an arm of a report; all are simulated together, whatever `every` says."""
    source = REPORTS[report]
    measured = pd.read_csv(data / source.file)
    ladder = [*measured[["rate", "duration_s"]].itertuples(index=False, name=None)]
    draws = _DRAWS if source.arms[arm] == _TOKEN_LOAD else 1
    simulated = [_stages(source, arm, ladder, seed) for seed in range(draws)]
    found = simulated[0][0]
    of_draws = pd.concat([stages for _, stages in simulated]).groupby(level=0)
    means: Any = of_draws.median()  # of waits: a draw with a queue would be all of a mean
    means["throughput"] = of_draws["throughput"].mean()
    of_arm = []
    for stage, row in enumerate(measured.to_dict("records"), start=1):
        predicted, name = means.loc[stage], f"{source.id}:{arm}:{row['rate']:g}/s"
        told = {"throughput": row[f"{arm}_output_tokens_per_s"]}
        middle, tail = row[f"{arm}_ttft_{source.middle}_s"], row[f"{arm}_ttft_p90_s"]
        if arm == "prefix" and middle > 0:
            told["ttft"] = 1e3 * middle
        of_told = {"throughput": predicted["throughput"], "ttft": predicted[source.middle]}
        statistic = {"p50": "median"}.get(source.middle, source.middle)
        of_arm.append(_point(found, source, name, statistic, told, {each: of_told[each] for each in told}))
        if arm == "prefix" and 0 < tail <= _QUEUE:
            of_arm.append(_point(found, source, f"{name}:p90", "p90", {"ttft": 1e3 * tail}, {"ttft": predicted["p90"]}))
    return Found(of_arm, {})


def _stages(source: Report, arm: str, ladder: list[tuple[float, float]], seed: int) -> tuple[Run, pd.DataFrame]:
    """A simulation, and of each of its stages output tokens/s and TTFT in ms; stage 0 is the warm-up."""
    prompts = source.prompts
    trace, stage_of = shared_prefix([WARM_UP, *ladder], prompts, seed=seed)
    found = run(*SYSTEM, *source.arms[arm], "arrival=trace", f"trace.hash_block_size={prompts.span}", trace=trace)
    requests = found.requests
    stages = requests.groupby(stage_of)
    waits = (1e3 * (requests["first_token_time"] - requests["arrival_time"])).groupby(stage_of)
    took = stages["finish_time"].max() - stages["arrival_time"].min()
    of_stage = {
        "throughput": prompts.output * stages.size() / took,
        "mean": waits.mean(),
        "p50": waits.median(),
        "p90": waits.quantile(0.9),
    }
    return found, pd.DataFrame(of_stage)


def _point(
    found: Run, source: Report, name: str, statistic: str, measured: Mapping[str, float], predicted: Mapping[str, float]
) -> Point:
    prompts = source.prompts
    return Point(
        id=name, source="llm-d", link=source.link, engine="vLLM", version="",
        kind=run_class(resolve(found.config), FLEET), num_gpus=found.config.num_gpus, clients=None,
        prompt=prompts.prefix + prompts.question, output=prompts.output,
        assumed="order of prompts; share of the memory; version; defaults of vLLM",
        statistic=statistic, measured=measured, predicted={each: float(value) for each, value in predicted.items()},
    )  # fmt: skip
