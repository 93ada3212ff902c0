"""How far off is the simulation of vLLM 0.19 on RTX PRO 6000 by NVIDIA's operator times, without a fit to it?"""

from __future__ import annotations

from pathlib import Path

from experiments.board.published_runs import vllm_settings
from experiments.fidelity.lab import Lab, print_errors


def database(lab: Lab, data: Path, profile: str) -> None:
    """Both runs, by the operator times and by LLMServingSim's bundle of the same card."""
    for case in ("llama", "qwen"):
        settings = vllm_settings(data, case)
        columns = {
            "operator times": lab.validate(f"{case}_operator_times", *settings, f"cost.profile='{profile}'"),
            "LLMServingSim's bundle": lab.validate(f"{case}_bundle", *settings),
        }
        print_errors(f"{case}, from the arrival, no constants", columns)
    lab.write()
