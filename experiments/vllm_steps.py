"""Step by step beside real vLLM: what it decided, and how long its steps took, where the logs tell only of requests.

    python experiments/vllm_steps.py --data ../shared/ground_truth

Recovers the steps of the two vLLM 0.19 runs that LLMServingSim publishes (`experiments/recovered_steps.py`), has our
scheduling core decide at their times, scores the profiles on them and fits the constants of Llama to them. The prices
are those of docs/fidelity/vllm, which `fidelity.py vllm` fits to statistics. Results go to
experiments/results/vllm_steps.json.

How many steps lie between two known moments was chosen by these prices, which leaves the errors of spans on the small
side; `margin` is by how much the nearest other choice is worse (misfits of 10 and more are those of absurd times).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from hydra import compose, initialize_config_dir
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from experiments.fidelity_lab import DOCS, RESULTS  # noqa: E402
from experiments.recovered_replay import replay  # noqa: E402
from experiments.recovered_steps import Price, Span, graph_of, priced_by, recover  # noqa: E402
from experiments.request_log import read_log  # noqa: E402
from harness import calibration  # noqa: E402
from harness.calibrate_fit import minimise  # noqa: E402
from harness.config import RunConfig, parse  # noqa: E402
from harness.results import environment  # noqa: E402
from harness.simulated import cost_model  # noqa: E402
from harness.validate import load_run, simulation_config  # noqa: E402
from simulator.importers.llmservingsim import graph_sizes  # noqa: E402

MODELS = {
    "llama": ("Llama-3.1-8B", ["model=llama-3.1-8b"], "sharegpt-llama-3.1-8b-300-sps10.jsonl"),
    "qwen": ("Qwen3-32B", ["model=qwen3-32b", "tensor_parallel_size=2"], "sharegpt-qwen3-32b-300-sps10.jsonl"),
}
SYSTEM = [
    "engine=sim", "device=rtx-pro-6000", "scheduler=vllm", "max_num_seqs=128", "max_num_batched_tokens=2048",
    "cost=profiled", "task=validate",
]  # fmt: skip
PROMPT_TOKENS = (256, 512, 768, 1024, 1536, 2047, 2048)  # upper ends of the classes of steps with prompts


def configured(data: Path, case: str) -> RunConfig:
    name, model, workload = MODELS[case]
    measured = data / "llmservingsim_vllm" / "RTXPRO6000" / name
    overrides = [
        *SYSTEM, *model, f"cost.profile=llmservingsim:{measured / 'profile'}",
        f"validation.measured=llmservingsim:{measured}",
        f"validation.workload={data / 'llmservingsim_vllm' / workload}",
        f"cost.calibration={ROOT / DOCS / 'vllm' / f'{case}_constants.yaml'}",
    ]  # fmt: skip
    with initialize_config_dir(config_dir=str(ROOT / "conf"), version_base=None):
        return parse(compose("config", overrides=overrides))


def errors(spans: Sequence[Span], price: Price, sizes: Sequence[int]) -> pd.DataFrame:
    """Measured and priced time in ms by kind of span: of decodes that are padded alike, and of a single step that has
    prompts, by its tokens, with or without decodes beside it. `error_ms` is of a step of decodes, or of such a span."""
    rows = []
    for span in spans:
        with_prompts = [step for step in span.steps if step.chunks]
        graphs = {graph_of(step, sizes) for step in span.steps}
        if len(with_prompts) == 1:
            num_tokens = with_prompts[0].num_decodes + sum(chunk.num_tokens for chunk in with_prompts[0].chunks)
            kind, size, count = "with prompts", next(end for end in PROMPT_TOKENS if end >= num_tokens), 1
        elif len(graphs) == 1 and (graph := graphs.pop()) is not None:
            kind, size, count = "decode", graph, len(span.steps)
        else:
            continue
        rows.append((kind, size, count, span.time_ns * 1e-6, sum(map(price, span.steps)) * 1e-6))
    table = pd.DataFrame(rows, columns=["kind", "tokens_up_to", "count", "measured_ms", "priced_ms"])
    found = table.groupby(["kind", "tokens_up_to"]).sum()
    found["error_ms"] = (found["priced_ms"] - found["measured_ms"]) / found["count"]
    found["error_pct"] = 100 * (found["priced_ms"] / found["measured_ms"] - 1)
    return found.round(3).reset_index()


def fitted(config: RunConfig, spans: Sequence[Span]) -> dict[str, float]:
    """The constants with the least sum of absolute errors of the spans, relative to their time; without any prior."""
    time = sum(span.time_ns for span in spans)

    def misfit(values: Mapping[str, float]) -> float:
        price = priced_by(cost_model(config, values))
        return sum(abs(sum(map(price, span.steps)) - span.time_ns) for span in spans if span.steps) / time

    return minimise(misfit, calibration.constants_of(config), 400, lambda count, best: None).values


def study(data: Path, case: str, console: Console) -> dict[str, Any]:
    config = configured(data, case)
    run = load_run(config)
    config, log = simulation_config(config, run), read_log(run)
    sizes = graph_sizes(config.max_num_seqs)
    spans, margin = recover(config, run, log, sizes)
    late = {name: np.abs(times) for name, times in replay(config, run, log, spans).items()}
    counts = {
        "requests": len(run.requests),
        "steps": sum(len(span.steps) for span in spans),
        "known_moments": len(log.moments),
        "margin": margin,
        "largest_deviation_ms": {name: float(times.max() * 1e-6) for name, times in late.items()},
    }
    table = errors(spans[1:], priced_by(cost_model(config)), sizes)
    shown = Table(*table.columns, box=None, title=case)
    for row in table.itertuples(index=False):
        shown.add_row(*(f"{value:,.2f}" if isinstance(value, float) else str(value) for value in row))
    console.print(counts, shown)
    found = {"counts": counts, "errors": table.to_dict("records")}
    if case == "llama":
        statistics = calibration.configured(config)
        found["constants"] = {
            "of_statistics": dict(statistics.constants) if statistics else {},
            "of_steps": fitted(config, spans[1:]),
        }
        console.print(found["constants"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/ground_truth"))
    args = parser.parse_args()
    console = Console()
    command = " ".join(["python", "experiments/vllm_steps.py", *sys.argv[1:]])
    record: dict[str, Any] = {"command": command, "environment": environment()}
    record |= {case: study(args.data.resolve(), case, console) for case in MODELS}
    (ROOT / RESULTS / "vllm_steps.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
