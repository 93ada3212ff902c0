"""How far off is a simulated fleet from one that was measured, behind two routers?

    python -m experiments.measured_fleet --data ../shared/ground_truth/llm_d

The fleet is that of llm-d's guide "optimized-baseline": 8 servers of vLLM with Qwen3-32B on 2 H100 each. `rr` hands
requests out in turn; `prefix` is llm-d's router, which keeps to servers that hold 80 % of a prompt unless one of them
has 286,720 tokens (40 of these requests) more under way than another. Nothing is fitted. What the guide's manifests do
not set is vLLM's default: 1,024 sequences, 8,192 tokens a step, 40,960 tokens a sequence.

The load is inference-perf's `guide_optimized-baseline_1`: 750 prompts in an order drawn once, again and again, in
Poisson stages; a stage begins when the one before it has been answered. Its output rate is all tokens of the stage over
the time from its first request to its last token, as the load generator counts. Results go to
experiments/results/measured_fleet*.json.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from experiments import RESULTS, provenance, write_result
from harness import run

SYSTEM = (
    "model=qwen3-32b", "device=h100-80gb", "tensor_parallel_size=2", "replicas=8", "scheduler=vllm", "block_size=16",
    "max_num_seqs=1024", "max_num_batched_tokens=8192", "max_model_len=40960",
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
MEASURES = ("output_tokens_per_s", "ttft_p50_s", "ttft_p90_s")


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


def simulated(
    arm: str, trace: pd.DataFrame, stage_of: np.ndarray[Any, np.dtype[np.int64]], overrides: list[str]
) -> pd.DataFrame:
    """The measures of each stage, the warm-up among them."""
    settings = [*SYSTEM, *ARMS[arm], "arrival=trace", f"trace.hash_block_size={PROMPTS.span}", *overrides]
    requests = run(*settings, trace=trace).requests
    requests["ttft"] = requests["first_token_time"] - requests["arrival_time"]
    stages = requests.groupby(stage_of)
    took = stages["finish_time"].max() - stages["arrival_time"].min()
    columns = [PROMPTS.output * stages.size() / took, stages["ttft"].quantile(0.5), stages["ttft"].quantile(0.9)]
    return pd.DataFrame(dict(zip(MEASURES, columns, strict=True)))


def show(measured: pd.DataFrame, found: dict[str, pd.DataFrame]) -> None:
    titles = [f"{arm}, {text}" for arm in ARMS for text in ("output tokens/s", "TTFT p50, s", "TTFT p90, s")]
    table = Table("requests/s", *titles, box=None, title="simulated (measured)")
    for stage, row in enumerate(measured.to_dict("records"), start=1):
        cells = []
        for arm in ARMS:
            for measure in MEASURES:
                value, other = float(found[arm][measure][stage]), float(row[f"{arm}_{measure}"])
                cells.append(f"{value:,.0f} ({other:,.0f})" if "tokens" in measure else f"{value:.2f} ({other:.1f})")
        table.add_row(f"{row['rate']}", *cells)
    console = Console(width=180)
    console.print(table)
    for arm in ARMS:
        peak, other = found[arm].loc[1:, MEASURES[0]].max(), measured[f"{arm}_{MEASURES[0]}"].max()
        console.print(f"{arm}: peak {peak:,.0f} output tokens/s, measured {other:,.0f} ({peak / other - 1:+.1%})")


def arguments(text: str | None) -> argparse.Namespace:
    """`data`, `seed` and `overrides` of the command line of an experiment on llm-d's figures, which `text` explains."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/ground_truth/llm_d"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("overrides", nargs="*", help="what is to be otherwise, such as num_blocks=30000")
    return parser.parse_args()


def store(experiment: str, overrides: list[str], found: dict[str, Any]) -> None:
    """Write what was found, in a file that is named after the experiment and the overrides."""
    name = "_".join([experiment, *overrides]).replace("=", "_").replace("/", "_")
    write_result(RESULTS / f"{name}.json", {**provenance(f"experiments.{experiment}"), **found})


def main() -> None:
    args = arguments(__doc__)
    measured = pd.read_csv(args.data / "router_qwen3_32b_8xTP2_h100.csv")
    ladder = [*measured[["rate", "duration_s"]].itertuples(index=False, name=None)]
    trace, stage_of = load([WARM_UP, *ladder], PROMPTS, args.seed)
    found = {arm: simulated(arm, trace, stage_of, args.overrides) for arm in ARMS}
    show(measured, found)
    stages = {arm: stages.loc[1:].round(4).to_dict("list") for arm, stages in found.items()}
    store("measured_fleet", args.overrides, {"rates": measured["rate"].tolist(), "simulated": stages})


if __name__ == "__main__":
    main()
