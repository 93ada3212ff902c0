"""How far off are step times of a GPU that are scaled from another one? Each GPU's own against those of others.

    python -m experiments.like_gpus      a minute; by the profiles that come with the project

For each GPU with measured kernels, and each other one that could stand in for it, steps of decodes, of prompts and of
both are priced by its own profile, by the other's as `simulator.profile.other_device` scales it, and by the roofline.
Errors are of the own profile's times. Writes experiments/results/like_gpus.json.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from engine.core.work import ChunkWork, StepWork
from experiments import RESULTS, composed, provenance, write_result
from harness.engines.resolving.system import device_rates, model_shape
from simulator.costs.constants import profiled_constants
from simulator.costs.cost import CostModel
from simulator.costs.profiled import ProfiledCost
from simulator.costs.roofline import RooflineCost
from simulator.importers.aiconfigurator.shipped import compiled_profile
from simulator.models.hardware import Device
from simulator.models.model import Model
from simulator.models.weight_formats import UnsupportedQuantizationError
from simulator.profile.archive import find_profile
from simulator.profile.other_device import on_device
from simulator.profile.profile import Profile

MODELS = ("qwen3-4b", "qwen3-8b", "llama-3.1-70b", "qwen3-30b-a3b", "gpt-oss-120b", "qwen3-235b-a22b", "deepseek-v3")
DEVICES = ("h100-80gb", "h200", "b200", "a100-80gb", "l40s", "rtx-pro-6000")
_SEATS = 512
_DECODES = [(n, context) for n in (1, 8, 64, 256) for context in (512, 4096)]
STEPS = {
    "decodes": [StepWork((), n, n * context, n * context**2) for n, context in _DECODES],
    "prompts": [StepWork((ChunkWork(0, chunk, True),), 0, 0, 0) for chunk in (256, 1024, 4096, 8192)],
    "both": [StepWork((ChunkWork(0, 2000, True),), n, n * c, n * c**2) for n, c in ((16, 1024), (128, 1024))],
}


def main() -> None:
    rows = pd.DataFrame(list(_rows()))
    print(rows.to_string(index=False))
    summary = rows.groupby(["device", "like", "steps"])[["scaled_pct", "roofline_pct"]].median().round(1)
    print(summary.to_string())
    write_result(RESULTS / "like_gpus.json", {**provenance("experiments.like_gpus"), "rows": rows.to_dict("records")})


def _rows() -> Iterator[dict[str, object]]:
    devices = {name: device_rates(composed(f"device={name}").device) for name in DEVICES}
    for model_name in MODELS:
        config = composed(f"model={model_name}")
        model = model_shape(config.model, config.weight_format, "auto")
        for ranks in (1, 2, 4, 8):
            profiles = {name: _profile(device, model, ranks) for name, device in devices.items()}
            for (name, own), (other, source) in ((a, b) for a in profiles.items() for b in profiles.items()):
                if own is not None and source is not None and name != other:
                    scaled = on_device(source, model, ranks, devices[other], devices[name])
                    if scaled is not None:
                        yield from _errors(name, other, model, ranks, devices[name], own, scaled)


def _profile(device: Device, model: Model, ranks: int) -> Profile | None:
    assert device.aiconfigurator_system is not None
    where = (device.aiconfigurator_system, model, ranks, _SEATS)
    return find_profile(*where) or compiled_profile(*where, device)


def _errors(
    name: str, like: str, model: Model, ranks: int, device: Device, own: Profile, scaled: Profile
) -> Iterator[dict[str, object]]:
    own_cost, scaled_cost = _cost(own, model, ranks, device), _cost(scaled, model, ranks, device)
    try:
        roofline: CostModel | None = RooflineCost(model, device, ranks)
    except UnsupportedQuantizationError:
        roofline = None
    for kind, steps in STEPS.items():
        found = {"device": name, "like": like, "model": model.name, "ranks": ranks, "steps": kind}
        times = np.array([own_cost.step_ns(step) for step in steps])
        for column, cost in (("scaled", scaled_cost), ("roofline", roofline)):
            if cost is not None:
                errors = np.array([cost.step_ns(step) for step in steps]) / times - 1
                found |= {f"{column}_pct": 100 * np.median(np.abs(errors)), f"{column}_signed": 100 * np.median(errors)}
        yield found


def _cost(profile: Profile, model: Model, ranks: int, device: Device) -> ProfiledCost:
    constants = profiled_constants(device, ranks, async_scheduling=True)
    return ProfiledCost(profile, model, ranks, {name: each.default for name, each in constants.items()})


if __name__ == "__main__":
    main()
