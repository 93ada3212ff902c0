"""Damaged calibration files and impossible constants: one line, or a cost model with possible prices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.config import RunConfig
from harness.engines.resolving import calibration_files
from harness.engines.resolving.system import resolve
from harness.errors import ConfigError
from simulator.quantities import RANGES
from tests.harness.builders import ROOT, config
from tests.mutations import mutants
from tests.simulator.builders import work

ON = {"measured": "run:x", "data_sha256": "0", "part": "all", "num_requests": 1}
CONSTANTS: dict[str, dict[str, Any]] = {
    "roofline": {"memory_efficiency": 0.6, "flops_efficiency": 0.4, "step_overhead_s": 3e-3, "link_latency_s": 1e-5},
    "linear": {"step_s": 0.02, "context_token_s": 1e-6, "prefill_step_s": 0.02, "prompt_token_s": 1e-4},
}
STEPS = [work([(0, 100, True)], []), work([(0, 3, True), (700, 5000, False)], [10, 3000]), work([], [40, 500, 90])]


def document(cost: str, **changes: Any) -> dict[str, Any]:
    widths = dict.fromkeys(CONSTANTS[cost], float("inf"))
    constants = {**CONSTANTS[cost], **changes}
    return {"constants": constants, "cost": cost, "fitted_on": ON, "kept": [ON], "objective": {"widths": widths}}


def with_calibration(path: Path, cost: str) -> RunConfig:
    return config(f"cost={cost}", "tensor_parallel_size=2", f"cost.calibration={path}")


def check(settings: RunConfig) -> bool:
    """Whether the calibration of `settings` is accepted."""
    try:
        system = resolve(settings)
    except ConfigError as error:
        assert "\n" not in str(error) and str(error).startswith("cost.calibration=")
        return False
    cost = system.cost_model()
    assert all(0 < cost.step_ns(step) < 10**15 for step in STEPS)
    assert all(0 < time < 10**15 for time in cost.decode_ns(STEPS[-1], 50))
    return True


@pytest.mark.parametrize(
    ("cost", "name"), [(cost, name) for cost, constants in CONSTANTS.items() for name in constants]
)
def test_a_constant_out_of_its_range_is_refused_by_name(cost: str, name: str, tmp_path: Path) -> None:
    path, limits = tmp_path / "calibration.yaml", RANGES[name]
    settings = with_calibration(path, cost)
    for value in (1000 * limits.high, -0.5, float("nan"), float("inf"), 10**30, 10**400, -1e-9):
        calibration_files.write(path, document(cost, **{name: float(value) if value != 10**400 else 1.0}))
        if value == 10**400:
            path.write_text(path.read_text().replace(f"{name}: 1.0", f"{name}: {value}"))
        with pytest.raises(ConfigError) as caught:
            resolve(settings)
        assert "\n" not in str(caught.value)
        assert f"constants.{name}=" in str(caught.value) or value == 10**400
    for value in (limits.low, limits.high):
        calibration_files.write(path, document(cost, **{name: value}))
        assert resolve(settings).cost_model().step_ns(STEPS[0]) > 0


def test_a_negative_overhead_of_a_profile_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "calibration.yaml"
    calibration_files.write(path, {"constants": {"step_overhead_us": -500.0}, "cost": "profiled", "fitted_on": ON})
    profile = ROOT / "simulator" / "profiles" / "amd-epyc" / "tiny"
    settings = config(
        "model=tiny", "model.max_position_embeddings=8192", "device=laptop-cpu", "cost=profiled",
        f"cost.profile={profile}", f"cost.calibration={path}",
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"constants.step_overhead_us=-500: must be a number >= 0 and <= 1e\+06"):
        resolve(settings)


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "fidelity").rglob("*.yaml")), ids=lambda path: path.stem)
def test_published_constants_are_in_their_ranges(path: Path) -> None:
    calibration = calibration_files.read(path)
    calibration_files.check(calibration, calibration.cost, calibration.constants)


@pytest.mark.parametrize(
    "edit",
    [
        {"kept": 5}, {"kept": "abc"}, {"kept": [5]}, {"kept": {"a": 1}}, {"constants": {1: 0.5}}, {"constants": [1]},
        {"constants": {"memory_efficiency": True}}, {"fitted_on": {**ON, "num_requests": float("nan")}},
        {"fitted_on": {**ON, "data_sha256": []}},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_types_are_refused(edit: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "calibration.yaml"
    path.write_text(yaml.safe_dump({**document("roofline"), **edit}))
    assert not check(with_calibration(path, "roofline"))


def check_mutants(cost: str, folder: Path, count: int, seed: int) -> None:
    path = folder / "calibration.yaml"
    calibration_files.write(path, document(cost))
    settings = with_calibration(path, cost)
    assert check(settings)
    accepted = 0
    for mutant in mutants(path.read_bytes(), "yaml", count, seed):
        path.write_bytes(mutant)
        accepted += check(settings)
    assert 0 < accepted < count


@pytest.mark.parametrize("cost", CONSTANTS)
def test_a_damaged_calibration_is_refused_in_one_line_or_has_possible_prices(cost: str, tmp_path: Path) -> None:
    check_mutants(cost, tmp_path, 100, 0)


@pytest.mark.slow
@pytest.mark.parametrize("cost", CONSTANTS)
def test_many_damaged_calibrations_are_refused_or_have_possible_prices(cost: str, tmp_path: Path) -> None:
    check_mutants(cost, tmp_path, 2000, 1)


@pytest.mark.parametrize("cost", ["roofline", "linear", "profiled"])
def test_what_a_fit_can_write_can_be_read(cost: str) -> None:
    profile = [f"cost.profile={ROOT / 'simulator' / 'profiles' / 'amd-epyc' / 'tiny'}"] if cost == "profiled" else []
    system = resolve(config(f"cost={cost}", "model=tiny", "device=laptop-cpu", *profile))
    for constants in (system.constants(), replace(system, tensor_parallel_size=2).constants()):
        for name, (default, low, high, _) in constants.items():
            assert all(RANGES[name].holds(value) for value in (default, low, high)), name
