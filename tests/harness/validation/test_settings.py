"""Settings that a measured run tells, compared by what they mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.measured import load_measured
from harness.validation.settings import different_device, different_settings
from simulator.profile.profile_folder import load_profile
from tests.harness.builders import GROUND_TRUTH, ROOT, config
from tests.harness.measured.builders import needs_ground_truth


@needs_ground_truth
@pytest.mark.parametrize(
    ("name", "model"),
    [("Llama-3.1-8B", ["model=llama-3.1-8b"]), ("Qwen3-32B", ["model=qwen3-32b", "tensor_parallel_size=2"])],
)
def test_published_runs_differ_from_another_configuration_only(name: str, model: list[str]) -> None:
    told = load_measured(f"llmservingsim:{GROUND_TRUTH / 'llmservingsim_vllm' / 'RTXPRO6000' / name}").settings
    limits = ["max_num_seqs=128", "max_num_batched_tokens=2048"]
    assert different_settings(told, config(*model, *limits)) == []
    assert different_settings(told, config("model=tiny", *limits, *model[1:])) == [
        f"model=tiny simulated, {told['model']} measured", "dtype=float32 simulated, bfloat16 measured",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("told", "same"),
    [
        ({"model_id": "qwen3-8b"}, True),
        ({"model": "/models/Qwen3-8B/"}, True),
        ({"model": "Qwen/Qwen3-32B"}, False),
        ({"model_id": "Qwen/Qwen3-32B"}, False),
        ({"dtype": "auto"}, True),
        ({"dtype": "torch.bfloat16"}, True),
        ({"dtype": "half"}, False),
        ({"kv_cache_dtype": "auto"}, True),
        ({"kv_cache_dtype": "bfloat16"}, True),
        ({"kv_cache_dtype": "fp8_e4m3"}, False),
        ({"quantization": None}, True),
        ({"quantization": "compressed-tensors"}, True),
        ({"quantization": "fp8"}, False),
        ({"max_model_len": None}, True),
        ({"max_model_len": 40960}, True),
        ({"max_model_len": 4096}, False),
        ({"max_num_seqs": 256}, True),
        ({"tensor_parallel_size": 2}, False),
        ({"seed": 42, "num_blocks": 7}, True),
    ],
    ids=str,
)
def test_what_means_the_same_is_no_difference(told: dict[str, Any], same: bool) -> None:
    assert len(different_settings(told, config("model=qwen3-8b"))) == (0 if same else 1)


def test_formats_of_eight_bits_are_alike() -> None:
    assert different_settings({"kv_cache_dtype": "fp8_e4m3"}, config("engine.kv_cache_dtype=fp8")) == []
    (line,) = different_settings({"kv_cache_dtype": "auto"}, config("engine.kv_cache_dtype=fp8"))
    assert line == "kv_cache_dtype=fp8 simulated, auto measured"
    assert different_settings({"quantization": "fp8"}, config("quantization=fp8_block")) == []


def test_a_run_of_another_device_or_other_threads_than_the_profile_is_told() -> None:
    profile = load_profile(ROOT / "simulator" / "profiles" / "amd-epyc" / "tiny" / "tp1")
    assert different_device("AMD EPYC, 1 thread", profile) == []
    (line,) = different_device("AMD EPYC, 2 threads", profile)
    assert line == "the profile is of AMD EPYC, 1 thread, the run of AMD EPYC, 2 threads"
    of_gpu = replace(
        profile, meta=replace(profile.meta, device="NVIDIA H200", source={"driver": "CUDA 13.0", "num_threads": 8})
    )
    assert different_device("NVIDIA H200", of_gpu) == []
    assert different_device("NVIDIA H100", of_gpu) == ["the profile is of NVIDIA H200, the run of NVIDIA H100"]
