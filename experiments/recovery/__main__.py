"""Step by step beside real vLLM: what it decided, and how long its steps took, where the logs tell only of requests.

    python experiments/vllm_steps.py --data ../shared/ground_truth

Recovers the steps of the two vLLM 0.19 runs that LLMServingSim publishes and of the four runs of an early vLLM that
DistServe does (`harness/recovery`), has our scheduling core decide at their times, scores the cost models on them, fits
the constants of Llama to them, and looks for the KV pools with which the core decides as the early vLLM did. The prices
are those of docs/fidelity, which `fidelity.py` fits. Results go to experiments/results/vllm_steps.json.

How many steps lie between two known moments was chosen by prices, which leaves the errors of spans on the small side;
`margin` is by how much the nearest other choice is worse; below 1 it fits about as well.
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

from experiments.fidelity.lab import DOCS, RESULTS  # noqa: E402
from experiments.fidelity.published import DISTSERVE_RATES, distserve_settings, vllm_settings  # noqa: E402
from harness.runs import fitted as calibration  # noqa: E402
from harness.calibration.fit import minimise  # noqa: E402
from harness.config import RunConfig, parse  # noqa: E402
from harness.measured import MeasuredRun  # noqa: E402
from experiments.recovery import RecoveredRun, recover  # noqa: E402
from experiments.recovery.mixed import graph_of  # noqa: E402
from experiments.recovery.replay import replay  # noqa: E402
from experiments.recovery.recovered_run import summary  # noqa: E402
from experiments.recovery.step_search import Price, Span, priced_by  # noqa: E402
from harness.results.tables import environment  # noqa: E402
from harness.runs.simulated import cost_model, kv_pool  # noqa: E402
from harness.validation.validate import load_run, simulation_config  # noqa: E402
from simulator.importers.llmservingsim import graph_sizes  # noqa: E402

PROMPT_TOKENS = (256, 512, 768, 1024, 1536, 2047, 2048)  # upper ends of the classes of steps with prompts
POOLS = range(3360, 3421)  # KV blocks to try
WINDOW_S, WINDOW_STEPS = 20, 50
DECISION_MS = 10.0  # a token that comes as much earlier or later was decided on otherwise: no step is as short


def recovered(settings: Sequence[str], constants: str) -> tuple[RunConfig, MeasuredRun, RecoveredRun]:
    overrides = ["task=validate", *settings, f"cost.calibration={ROOT / DOCS / constants}"]
    with initialize_config_dir(config_dir=str(ROOT / "conf"), version_base=None):
        config = parse(compose("config", overrides=overrides))
    run = load_run(config)
    config = simulation_config(config, run)
    return config, run, recover(config, run)


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


def fitted(config: RunConfig, found: RecoveredRun) -> dict[str, float]:
    """The constants with the least sum of absolute errors of the spans, relative to their time; without any prior."""

    def misfit(values: Mapping[str, float]) -> float:
        return found.misfit(priced_by(cost_model(config, values)), "all")

    return minimise(misfit, calibration.constants_of(config), 400, lambda count, best: None).values


def study_vllm(data: Path, case: str, console: Console) -> dict[str, Any]:
    config, _, found = recovered(vllm_settings(data, case), f"vllm/{case}_constants.yaml")
    price = priced_by(cost_model(config))
    table = errors(found.spans[1:], price, graph_sizes(config.max_num_seqs))
    shown = Table(*table.columns, box=None, title=case)
    for row in table.itertuples(index=False):
        shown.add_row(*(f"{value:,.2f}" if isinstance(value, float) else str(value) for value in row))
    record = {"summary": summary(found, price, "all"), "errors": table.to_dict("records")}
    console.print(record["summary"], shown)
    if case == "llama":
        statistics = calibration.configured(config)
        record["constants"] = {
            "of_statistics": dict(statistics.constants) if statistics else {},
            "of_steps": fitted(config, found),
        }
        console.print(record["constants"])
    return record


def study_distserve(data: Path, rate: str, console: Console) -> dict[str, Any]:
    config, run, found = recovered(distserve_settings(data, rate), "distserve/constants.yaml")
    record: dict[str, Any] = {"summary": summary(found, priced_by(cost_model(config)), "all")}
    record["padding_of_batches"] = paddings(found)
    used = calibration.configured(config)
    assert used is not None
    record["fixed_part_of_decodes"] = fixed_parts(found, used.constants["context_token_s"])
    if rate == DISTSERVE_RATES[-1]:
        same = [pool for pool in POOLS if not decided_otherwise(config, run, found, pool)]
        pool = kv_pool(config).num_blocks
        record["pools"] = {
            "of_the_formula": pool,
            "decided_otherwise_with_it": decided_otherwise(config, run, found, pool),
            "decided_as_measured": same,
        }
    console.print(rate, record)
    return record


def fixed_parts(found: RecoveredRun, context_token_s: float) -> list[dict[str, float]]:
    """Of every 20 s in which 50 steps were of spans without prompts: what these took without contexts, ms a step."""
    totals: dict[int, list[float]] = {}
    starts = np.cumsum([0, *(span.time_ns for span in found.spans)]) * 1e-9
    for start, span in zip(starts[1:], found.spans[1:], strict=False):
        if span.steps and not any(step.chunks for step in span.steps):
            contexts = sum(step.num_context_tokens for step in span.steps)
            total = totals.setdefault(int(start // WINDOW_S), [0.0, 0])
            total[0] += span.time_ns * 1e-6 - 1e3 * context_token_s * contexts
            total[1] += len(span.steps)
    return [
        {"from_s": window * WINDOW_S, "steps": steps, "ms": round(time / steps, 2)}
        for window, (time, steps) in sorted(totals.items())
        if steps >= WINDOW_STEPS
    ]


def paddings(found: RecoveredRun) -> list[int]:
    """Tokens of padding in the steps of several prompts, ascending."""
    sizes = [[chunk.num_tokens for chunk in step.chunks] for span in found.spans for step in span.steps]
    return sorted(max(each) * len(each) - sum(each) for each in sizes if len(each) > 1)


def decided_otherwise(config: RunConfig, run: MeasuredRun, found: RecoveredRun, num_blocks: int) -> int:
    """How many requests the core serves in other steps than measured, with a KV pool of `num_blocks`."""
    resized = config.model_copy(update={"num_blocks": num_blocks})
    late = replay(resized, run, found.log, found.spans, found.price)
    return int((np.max(np.abs([*late.values()]), axis=0) > DECISION_MS * 1e6).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/ground_truth"))
    args = parser.parse_args()
    console, data = Console(), args.data.resolve()
    command = " ".join(["python", "experiments/vllm_steps.py", *sys.argv[1:]])
    record: dict[str, Any] = {"command": command, "environment": environment()}
    record |= {case: study_vllm(data, case, console) for case in ("llama", "qwen")}
    record |= {f"distserve_{rate}": study_distserve(data, rate, console) for rate in DISTSERVE_RATES}
    (ROOT / RESULTS / "vllm_steps.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
