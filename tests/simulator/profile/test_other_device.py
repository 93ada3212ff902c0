"""Profiles of devices that were not timed, from kernels of those that were."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.engines.resolving.known_error import SCALED, run_class
from harness.engines.resolving.system import device_rates, model_shape, resolve
from simulator.device import Device
from simulator.importers.aiconfigurator.shipped import compiled_profile
from simulator.models.model import Model
from simulator.models.weight_formats import QUANTIZATIONS
from simulator.profile.other_device import LAUNCH_US, on_device
from simulator.profile.profile import Profile
from tests.harness.builders import config


def device(name: str) -> Device:
    return device_rates(config(f"device={name}").device)


def timed(name: str, ranks: int = 2, quantization: str | None = None) -> tuple[Profile, Model, Device]:
    """The profile of a model on H100."""
    made, rates = config(f"model={name}"), device("h100-80gb")
    model = model_shape(made.model, made.weight_format, "auto")
    if quantization:
        model = replace(model, quantization=QUANTIZATIONS[quantization])
    profile = compiled_profile("h100_sxm", model, ranks, 256, rates)
    assert profile is not None
    return profile, model, rates


@pytest.mark.parametrize("name", ["qwen3-8b", "qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v3"])
def test_a_device_is_like_itself_and_takes_as_long_as_its_rates_say(name: str) -> None:
    ranks = 8 if name == "deepseek-v3" else 2
    profile, model, rates = timed(name, ranks)
    same = on_device(profile, model, ranks, rates, replace(rates, name="the same"))
    half = replace(
        rates, memory_bandwidth=rates.memory_bandwidth / 2, link_bandwidth=rates.link_bandwidth / 2,
        flops={key: value / 2 for key, value in rates.flops.items()},
    )  # fmt: skip
    slow = on_device(profile, model, ranks, rates, half)
    assert same is not None and slow is not None
    for table, rows in profile.tables.items():
        times = rows["time_us"].to_numpy()
        assert same.tables[table]["time_us"].to_numpy() == pytest.approx(times), table
        above = np.maximum(times - LAUNCH_US, 0)
        assert slow.tables[table]["time_us"].to_numpy() == pytest.approx(times + above), table


def test_what_waits_for_memory_scales_by_its_bandwidth_and_what_computes_by_its_operations() -> None:
    profile, model, rates = timed("qwen3-8b", 1)
    target = replace(rates, memory_bandwidth=rates.memory_bandwidth / 4)
    made = on_device(profile, model, 1, rates, target)
    assert made is not None

    def ratios(table: str, query: str) -> np.ndarray:
        times = [each.tables[table].query(query)["time_us"].to_numpy() - LAUNCH_US for each in (made, profile)]
        return np.asarray(times[0] / times[1])

    assert ratios("tokens", "operator == 'gate_up_proj' and num_tokens <= 16") == pytest.approx(4)
    assert ratios("tokens", "operator == 'gate_up_proj' and num_tokens >= 4096") == pytest.approx(1)
    assert ratios("attention", "num_decodes == 64 and decode_context == 4096") == pytest.approx(4)
    assert ratios("attention", "prefill_tokens >= 8192 and prefill_context == 0") == pytest.approx(1)


def test_weights_that_a_device_cannot_multiply_by_are_not_scaled() -> None:
    profile, model, rates = timed("qwen3-8b", 1, "fp8")
    plain = {key: value for key, value in rates.flops.items() if key != "fp8"}
    assert on_device(profile, model, 1, rates, replace(rates, flops=plain)) is None
    widened = resolve(config("model=qwen3-4b", "quantization=fp8", "device=rtx-3090", "cost=profiled"))
    assert widened.cost.kind == "profiled" and any("measured in 16 bits" in note for note in widened.notes)


def test_a_desktop_card_is_priced_by_kernels_of_its_kind() -> None:
    system = resolve(config("model=qwen3-4b", "device=rtx-4090", "cost=profiled"))
    assert system.profile is not None and system.profile.meta.device == "NVIDIA GeForce RTX 4090"
    assert any("scaled by the rates of both" in note for note in system.notes)
    assert run_class(system, "at once").cost == SCALED
    alone = resolve(config("model=qwen3-4b", "device=rtx-4090", "cost=profiled", "device.kernels_like=null"))
    assert alone.cost.kind == "roofline"
    archived = resolve(config("model=qwen3-8b", "device=b300", "cost=profiled"))
    assert archived.profile is not None and "scaled_from" not in archived.profile.meta.source
