"""What a step launches per layer on a GPU, name by name, so that a launch more or another order fails here."""

from __future__ import annotations

import os
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter launches kernels in another way", allow_module_level=True)

import torch  # noqa: E402

from engine.models.model_config import ModelConfig  # noqa: E402
from engine.models.quantization import Fp8Weights  # noqa: E402
from kernels.sampling.sampler import sample  # noqa: E402
from tests.cuda_standin import CUDA, standing_in  # noqa: E402
from tests.kernels.launches import build, make_model, run_step  # noqa: E402

NORM, STORE, GEMM = "rms_norm_kernel", "rotary_store_kernel", "mm"
DECODE = ["decode_kernel", "join_splits_kernel"]
MLP = [GEMM, NORM, GEMM, "silu_and_mul_kernel", GEMM]


def launched(
    monkeypatch: pytest.MonkeyPatch,
    num_layers: int,
    chunks: list[int],
    cache_dtype: torch.dtype = torch.bfloat16,
    **changes: Any,
) -> list[str]:
    with standing_in(monkeypatch) as gpu:
        model = make_model(num_layers, **changes)
        run_step(model, chunks, 3, cache_dtype)
    start = gpu.log.index(STORE) - 2  # the projection and the norm before it
    return gpu.log[start:]


@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize(
    ("family", "projection"), [("qwen3", GEMM), ("qwen2", "addmm"), ("llama", GEMM)], ids=lambda name: name
)
def test_a_decode_step_launches_ten_per_layer(
    monkeypatch: pytest.MonkeyPatch, family: str, projection: str, cache_dtype: torch.dtype
) -> None:
    """After the last layer comes the final norm."""
    layer = [NORM, projection, STORE, *DECODE, *MLP]
    assert len(layer) == 10
    for num_layers in (1, 3):
        names = launched(monkeypatch, num_layers, [], cache_dtype, family=family)
        assert names == [*layer * num_layers, NORM]


def test_a_mixed_step_launches_eleven_per_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = [NORM, GEMM, STORE, "prefill_kernel", *DECODE, *MLP]
    assert len(layer) == 11
    names = launched(monkeypatch, 3, [40, 7], family="qwen3")
    assert names == [*layer * 3, NORM]


@pytest.mark.parametrize(
    ("chunks", "routing"),
    [([], ["route_small_kernel"]), ([400], ["choose_kernel", "place_kernel"])],
    ids=["few", "many"],
)
def test_experts_launch_one_or_two_kernels_to_route_and_four_more(
    monkeypatch: pytest.MonkeyPatch, chunks: list[int], routing: list[str]
) -> None:
    experts = {"num_experts": 128, "num_experts_per_token": 8, "moe_intermediate_size": 16}
    names = launched(monkeypatch, 1, chunks, family="qwen3_moe", **experts)
    after_attention = [GEMM, NORM, GEMM, *routing]  # projection, norm, router
    grouped = ["grouped_gemm_kernel", "silu_and_mul_kernel", "grouped_gemm_kernel", "sum_choices_kernel"]
    assert names[-len(after_attention + grouped) - 1 :] == [*after_attention, *grouped, NORM]


def test_models_of_today_launch_their_kernels_and_look_at_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSeek-V3 with a dense layer before one with experts, and gpt-oss with a window in the first of two layers."""
    deepseek = ModelConfig.from_hf(
        {
            "architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 2, "hidden_size": 32, "vocab_size": 200,
            "num_attention_heads": 2, "intermediate_size": 48, "max_position_embeddings": 8192, "kv_lora_rank": 16,
            "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 8, "n_group": 2,
            "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_shared_experts": 1,
            "first_k_dense_replace": 1,
        }
    )  # fmt: skip
    experts = {"num_experts": 8, "num_experts_per_token": 2, "moe_intermediate_size": 32}
    gpt_oss: dict[str, Any] = {"family": "gpt_oss", "sliding_window": 128, "num_sliding_layers": 1, **experts}
    latent = ["latent_store_kernel", "latent_kernel", "join_splits_kernel"]
    for make, kernels, expected in (
        (lambda: build(deepseek), latent, latent * 2),
        (lambda: make_model(2, **gpt_oss), [STORE, *DECODE], [STORE, "decode_kernel", STORE, *DECODE]),
    ):
        with standing_in(monkeypatch) as gpu:
            run_step(make(), [], 3)
        log = gpu.log[gpu.log.index("embedding") :]
        assert [name for name in log if name in kernels] == expected, "128 tokens of a window take one split"
        assert log.count("grouped_gemm_kernel") == (2 if kernels == latent else 4)
        assert not any("waits" in name for name in log)


def test_experts_in_float8_launch_two_more_to_quantise_their_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    experts = {"num_experts": 8, "num_experts_per_token": 2, "moe_intermediate_size": 32}
    names = launched(monkeypatch, 1, [], family="qwen3_moe", fp8=Fp8Weights((32, 32)), **experts)
    product = ["quantize_tokens_kernel", "grouped_gemm_kernel"]
    after_router = ["route_small_kernel", *product, "silu_and_mul_kernel", *product, "sum_choices_kernel", NORM]
    assert names[-len(after_router) - 1 :] == [GEMM, *after_router]


def test_sampling_launches_two_kernels_and_one_for_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = ["sample_block_kernel", "sample_join_kernel"]
    for is_limited, expected in ((False, draw), (True, ["keep_threshold_kernel", *draw])):
        with standing_in(monkeypatch) as gpu:
            logits, zeros = torch.zeros(3, 200, dtype=torch.bfloat16, device=CUDA), torch.zeros(3, device=CUDA)
            seeds, top_k = torch.zeros(2, 3, dtype=torch.int64, device=CUDA)
            limits = (top_k.to(torch.int32), zeros) if is_limited else (None, None)
            gpu.take()
            sample(logits, zeros, limits[0], limits[1], seeds, seeds)
        assert gpu.log == expected
