"""Profiles that a run should not be priced with, or not without saying so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.device import Device
from simulator.profile.checks import check_units, differences
from simulator.profile.profile import Profile, ProfileError
from tests.simulator.builders import MODEL, profile

# The 266 us that `qkv_proj` takes for 512 tokens are a third of its peak.
DEVICE = Device("device", 1 << 30, 1e9, {"bf16": 1e11, "fp32": 1e10}, 0.8, 0.7, 1e9, 1e-5, 1e-3)


def scaled(factor: float) -> Profile:
    measured = profile()
    tokens = measured.tables["tokens"]
    return Profile(measured.meta, {**measured.tables, "tokens": tokens.assign(time_us=tokens["time_us"] * factor)})


@pytest.mark.parametrize(("factor", "is_told"), [(1e3, True), (10.0, False), (1.0, False), (0.2, False), (0.05, True)])
def test_a_profile_of_another_device_is_told(factor: float, is_told: bool) -> None:
    check_units(scaled(factor), MODEL, DEVICE)
    told = differences(scaled(factor), MODEL, DEVICE, 16)
    assert bool(told) == is_told and all("qkv_proj of 512 tokens" in line for line in told)


@pytest.mark.parametrize("factor", [1e-3, 1e-4])
def test_times_in_a_larger_unit_are_refused(factor: float) -> None:
    with pytest.raises(ProfileError, match="FLOP/s, .* times the peak of device, .* must be in microseconds"):
        check_units(scaled(factor), MODEL, DEVICE)


@pytest.mark.parametrize(("profiled", "is_told"), [(16, True), (64, False), (None, False)])
def test_another_block_size_is_told(profiled: int | None, is_told: bool) -> None:
    told = differences(profile(block_size=profiled), MODEL, DEVICE, 64)
    assert told == (["the profile's kernels ran with block_size=16, this run has 64"] if is_told else [])


@pytest.mark.parametrize(
    ("profiled", "configured", "is_told"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3", False),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H200", True),
        ("a100", "NVIDIA A100-SXM4-80GB", False),
        ("AMD EPYC", "laptop CPU", False),
    ],
)
def test_another_gpu_is_told(profiled: str, configured: str, is_told: bool) -> None:
    told = differences(profile(device=profiled), MODEL, replace(DEVICE, name=configured), 16)
    assert told == ([f"step times are of {profiled}, memory and links of {configured}"] if is_told else [])
