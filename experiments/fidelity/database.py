"""How far off is the simulation of vLLM 0.19 on RTX PRO 6000 by NVIDIA's operator times, without a fit to it?"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from rich.console import Console

from experiments import FIDELITY, composed
from experiments.fidelity.lab import Lab, print_errors
from experiments.published_runs import vllm_settings
from experiments.recovery.batches import errors
from experiments.recovery.constants import recovered
from experiments.recovery.steps import priced_by
from harness.runs.system import resolve
from simulator.profile.cuda_graphs import graph_sizes


def database(lab: Lab, data: Path, profile: str) -> None:
    """Both runs, by the operator times and by LLMServingSim's bundle of the same card; and each of their steps."""
    profile = f"cost.profile='{profile}'"
    steps = {}
    for case in ("llama", "qwen"):
        settings = vllm_settings(data, case)
        columns = {
            "operator times": lab.validate(f"{case}_operator_times", *settings, profile),
            "LLMServingSim's bundle": lab.validate(f"{case}_bundle", *settings),
        }
        print_errors(f"{case}, from the arrival, no constants", columns)
        steps[case] = step_errors(settings, profile, f"cost.calibration={FIDELITY / 'vllm' / f'{case}_constants.yaml'}")
        Console().print(case, steps[case].to_string(index=False))
    lab.write(steps={case: table.to_dict("records") for case, table in steps.items()})


def step_errors(settings: list[str], profile: str, constants: str) -> pd.DataFrame:
    """Errors in percent of both prices by kind and size of step, beside the recovered time of such a step in ms."""
    # The search for the steps needs good prices; they are scored without any constant.
    system, _, found = recovered(*settings, constants)
    priced = resolve(composed("task=validate", *settings, profile))
    tables = {
        name: errors(found.spans[1:], priced_by(each.cost_model({})), graph_sizes(system.max_num_seqs))
        for name, each in (("bundle", system), ("operator_times", priced))
    }
    table = tables["bundle"][["kind", "tokens_up_to", "count"]].copy()
    table["recovered_ms"] = tables["bundle"]["measured_ms"] / table["count"]
    for name, each in tables.items():
        table[f"{name}_error_pct"] = each["error_pct"]
    return table
