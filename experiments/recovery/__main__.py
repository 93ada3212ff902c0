"""Does our scheduling core decide as real vLLM did, and how long did vLLM's steps take?

    python -m experiments.recovery --data ../shared/ground_truth

Recovers the steps of the two vLLM 0.19 runs that LLMServingSim publishes and of the four runs of an early vLLM that
DistServe publishes. Then our scheduling core decides at the recovered times, the cost models are scored on the
recovered steps, the constants of Llama are fitted to them, and KV pools are tried for the early vLLM until the core
decides as it did. Prices are those of docs/fidelity, which `experiments.fidelity` fits. Results go to
experiments/results/vllm_steps.json.

The number of steps between two moments was chosen by prices, so the errors of spans are on the small side. `margin`
says how much worse the next best division into steps fits; below 1 it fits about as well.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments import FIDELITY, RESULTS, ROOT, provenance
from experiments.published_runs import DISTSERVE_RATES, distserve_settings, vllm_settings
from experiments.recovery.batches import errors
from experiments.recovery.constants import recovered, recovered_objective
from experiments.recovery.early_vllm import decided_otherwise, fixed_parts, paddings
from experiments.recovery.recovered_run import RecoveredRun, summary
from experiments.recovery.steps import priced_by
from harness.calibration.fit import minimise
from simulator.profile.cuda_graphs import graph_sizes
from simulator.system import System

POOLS = range(3360, 3421)  # KV blocks to try


def study_vllm(data: Path, case: str, console: Console) -> dict[str, Any]:
    system, _, found = recovered(*vllm_settings(data, case), constants(f"vllm/{case}_constants.yaml"))
    price = priced_by(system.cost_model())
    table = errors(found.spans[1:], price, graph_sizes(system.max_num_seqs))
    shown = Table(*table.columns, box=None, title=case)
    for row in table.itertuples(index=False):
        shown.add_row(*(f"{value:,.2f}" if isinstance(value, float) else str(value) for value in row))
    record = {"summary": summary(found, price, "all"), "errors": table.to_dict("records")}
    console.print(record["summary"], shown)
    if case == "llama":
        assert system.calibration is not None
        record["constants"] = {
            "of_statistics": dict(system.calibration.constants),
            "of_steps": fitted_without_prior(system, found),
        }
        console.print(record["constants"])
    return record


def fitted_without_prior(system: System, found: RecoveredRun) -> dict[str, float]:
    """The constants with the least relative absolute error of the spans, started from the cost model's defaults."""
    objective = recovered_objective(system, found, "all")
    return minimise(objective.misfit, system.constants(), 400, lambda count, best: None).values


def study_distserve(data: Path, rate: str, console: Console) -> dict[str, Any]:
    system, run, found = recovered(*distserve_settings(data, rate), constants("distserve/constants.yaml"))
    assert system.calibration is not None
    record: dict[str, Any] = {"summary": summary(found, priced_by(system.cost_model()), "all")}
    record["padding_of_batches"] = paddings(found)
    record["fixed_part_of_decodes"] = fixed_parts(found, system.calibration.constants["context_token_s"])
    if rate == DISTSERVE_RATES[-1]:
        same = [pool for pool in POOLS if not decided_otherwise(system, run, found, pool)]
        pool = system.pool.num_blocks
        record["pools"] = {
            "of_the_formula": pool,
            "decided_otherwise_with_it": decided_otherwise(system, run, found, pool),
            "decided_as_measured": same,
        }
    console.print(rate, record)
    return record


def constants(name: str) -> str:
    """The setting that prices steps with published constants."""
    return f"cost.calibration={ROOT / FIDELITY / name}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/ground_truth"))
    args = parser.parse_args()
    console, data = Console(), args.data.resolve()
    record = provenance("experiments.recovery")
    record |= {case: study_vllm(data, case, console) for case in ("llama", "qwen")}
    record |= {f"distserve_{rate}": study_distserve(data, rate, console) for rate in DISTSERVE_RATES}
    (ROOT / RESULTS / "vllm_steps.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
