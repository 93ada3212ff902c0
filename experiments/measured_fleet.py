"""A fleet that was measured behind two routers, simulated: points of the board.

The fleet is that of llm-d's guide "optimized-baseline": 8 servers of vLLM with Qwen3-32B on 2 H100 each. `rr` hands
requests out in turn; `prefix` is llm-d's router, which keeps to servers that hold 80 % of a prompt unless one of them
has 286,720 tokens (40 of these requests) more under way than another. Nothing is fitted. What the guide's manifests do
not set is vLLM's default: 1,024 sequences, 8,192 tokens a step, 40,960 tokens a sequence. Clients reach vLLM's front
end.

The load is inference-perf's `guide_optimized-baseline_1`: 750 prompts in an order drawn once, again and again, in
Poisson stages; a stage begins when the one before it has been answered. Its output rate is all tokens of the stage over
the time from its first request to its last token, as the load generator counts. TTFT in turns is not compared: clients
gave up after 30 s.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments import PLAIN
from experiments.board.point import FLEET, Found, Point
from harness import run
from harness.engines.resolving.known_error import run_class
from harness.engines.resolving.system import resolve

_LINK = "https://github.com/llm-d/llm-d/tree/53c5b20a/guides/optimized-baseline/benchmark-results"

SYSTEM = (
    *PLAIN, "frontend=vllm", "frontend.endpoint=completions", "model=qwen3-32b", "device=h100-80gb",
    "tensor_parallel_size=2", "replicas=8", "scheduler=vllm", "block_size=16", "max_num_seqs=1024",
    "max_num_batched_tokens=8192", "max_model_len=40960",
)  # fmt: skip
ARMS = {
    "rr": ["router=round_robin"],
    "prefix": ["router=prefix_affinity", "router.options.min_match=0.8", "router.options.max_ahead=40"],
}


@dataclass(frozen=True)
class Prompts:
    """`num_groups` groups of `per_group` prompts that share `prefix` tokens, with `question` of their own.

    `span` tokens have an identity in the trace.
    """

    num_groups: int
    per_group: int
    prefix: int
    question: int
    output: int
    span: int

    def identities(self, prompt: int) -> list[int]:
        shared, own = self.prefix // self.span, self.question // self.span
        group, first_own = prompt // self.per_group, self.num_groups * shared
        return [
            *range(group * shared, (group + 1) * shared),
            *range(first_own + prompt * own, first_own + (prompt + 1) * own),
        ]


PROMPTS = Prompts(num_groups=150, per_group=5, prefix=6000, question=1200, output=1000, span=400)
WARM_UP = (15, 50)  # requests/s, s: a stage that nobody reports
PAUSE = 600.0  # s, in which the longest queue of these stages is served


def load(
    stages: list[tuple[float, float]], prompts: Prompts, seed: int
) -> tuple[pd.DataFrame, np.ndarray[Any, np.dtype[np.int64]]]:
    """The trace, and the stage of each of its requests."""
    rng = np.random.default_rng(seed)
    counts = [round(rate * duration) for rate, duration in stages]
    stage_of = np.repeat(np.arange(len(stages)), counts)
    times, start = [], 0.0
    for (rate, _), count in zip(stages, counts, strict=True):
        times.append(start + np.cumsum(rng.exponential(1 / rate, count)))
        start = times[-1][-1] + PAUSE
    order = np.resize(rng.permutation(prompts.num_groups * prompts.per_group), len(stage_of))
    frame = pd.DataFrame({"arrival_time": np.concatenate(times)})
    frame["num_prompt_tokens"] = prompts.prefix + prompts.question
    frame["num_output_tokens"] = prompts.output
    frame["hash_ids"] = [prompts.identities(int(prompt)) for prompt in order]
    return frame, stage_of


def points(data: Path, arm: str, every: int = 1) -> Found:
    """A point for each stage of an arm; all of them are one simulation, whatever `every` says."""
    measured = pd.read_csv(data / "router_qwen3_32b_8xTP2_h100.csv")
    ladder = [*measured[["rate", "duration_s"]].itertuples(index=False, name=None)]
    trace, stage_of = load([WARM_UP, *ladder], PROMPTS, seed=0)
    found = run(*SYSTEM, *ARMS[arm], "arrival=trace", f"trace.hash_block_size={PROMPTS.span}", trace=trace)
    requests = found.requests
    ttft = 1e3 * (requests["first_token_time"] - requests["arrival_time"])
    stages = requests.groupby(stage_of)
    took = stages["finish_time"].max() - stages["arrival_time"].min()
    throughput, medians = PROMPTS.output * stages.size() / took, ttft.groupby(stage_of).median()
    kind = run_class(resolve(found.config), FLEET)
    of_arm = []
    for stage, row in enumerate(measured.to_dict("records"), start=1):
        told, predicted = {"throughput": row[f"{arm}_output_tokens_per_s"]}, {"throughput": throughput[stage]}
        if arm == "prefix" and row["prefix_ttft_p50_s"] > 0:
            told["ttft"], predicted["ttft"] = 1e3 * row["prefix_ttft_p50_s"], medians[stage]
        of_arm.append(
            Point(
                id=f"router_qwen3_32b:{arm}:{row['rate']:g}/s", source="llm-d", link=_LINK, engine="vLLM", version="",
                kind=kind, num_gpus=found.config.num_gpus, clients=None, prompt=PROMPTS.prefix + PROMPTS.question,
                output=PROMPTS.output, assumed="order of prompts; defaults of vLLM", statistic="median", measured=told,
                predicted=predicted,
            )
        )  # fmt: skip
    return Found(of_arm, {})
