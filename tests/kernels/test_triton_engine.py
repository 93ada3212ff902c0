"""A whole engine with Triton kernels and decode steps in buckets (CUDA graphs on a GPU) against one in PyTorch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")


from engine.api.llm import LLM  # noqa: E402
from engine.engine_config import Quantized  # noqa: E402
from engine.models.layers import attention  # noqa: E402
from engine.models.model_config import ModelConfig  # noqa: E402
from engine.runner.executors import executor  # noqa: E402
from engine.sampling_params import SamplingParams  # noqa: E402
from kernels import activation, decode_step, norm  # noqa: E402
from kernels.attention.triton_backend import TritonBackend  # noqa: E402
from kernels.cache import latent_store  # noqa: E402
from kernels.experts import expert_products, moe  # noqa: E402
from kernels.linear import fp8_linear  # noqa: E402
from kernels.sampling import sampler  # noqa: E402

SHAPE: dict[str, Any] = {
    "name": "small", "num_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "num_kv_heads": 1, "head_dim": 16,
    "intermediate_size": 48, "vocab_size": 200, "tie_word_embeddings": False, "max_position_embeddings": 64,
    "dtype": "float32", "num_experts": 0, "num_experts_per_token": 0, "moe_intermediate_size": 0,
}  # fmt: skip
EXPERTS = {"family": "qwen3_moe", "num_experts": 4, "num_experts_per_token": 2, "moe_intermediate_size": 16}
GPT_OSS = EXPERTS | {
    "name": "gpt-oss-small", "family": "gpt_oss", "num_layers": 2, "sliding_window": 6, "num_sliding_layers": 1
}  # fmt: skip
LATENT = ModelConfig.from_hf(
    {
        "architectures": ["DeepseekV2ForCausalLM"], "num_hidden_layers": 1, "hidden_size": 32, "vocab_size": 200,
        "num_attention_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64, "kv_lora_rank": 20,
        "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_shared_experts": 1,
    }
)  # fmt: skip
GREEDY = SamplingParams(max_tokens=5, temperature=0.0)
SHORT = SamplingParams(max_tokens=2, temperature=0.0)
FILTERED = SamplingParams(max_tokens=3, temperature=0.7, top_k=20, top_p=0.9, seed=3)
PROMPTS = [[5, 9, 2], [7] * 11, [1, 2, 3, 4, 5, 6, 7]]


def generate(
    device: str, params: SamplingParams, shape: dict[str, Any] | ModelConfig, **settings: Any
) -> list[list[int]]:
    model = shape if isinstance(shape, ModelConfig) else ModelConfig.from_shape(shape)
    model = replace(model, initializer_range=0.2)
    where = {"device": "cuda"} if device == "cuda" else {"device": "cpu"}
    defaults: dict[str, Any] = {"block_size": 4, "num_blocks": 8, "max_num_seqs": 3, "max_num_batched_tokens": 12}
    llm = LLM(model, **{**defaults, **where, **settings})
    try:
        return [output["token_ids"] for output in llm.generate(PROMPTS, params)]
    finally:
        llm.close()


@pytest.mark.parametrize(
    ("params", "shape"),
    [
        pytest.param(GREEDY, SHAPE | EXPERTS | {"num_layers": 1}, id="greedy-experts", marks=pytest.mark.slow),
        pytest.param(SHORT, SHAPE | GPT_OSS, id="greedy-gpt-oss"),
        pytest.param(SHORT, LATENT, id="greedy-latent"),
        pytest.param(FILTERED, SHAPE | {"num_layers": 1}, id="filtered-dense", marks=pytest.mark.slow),
        pytest.param(GREEDY, SHAPE, id="greedy-dense", marks=pytest.mark.slow),
        pytest.param(FILTERED, SHAPE | EXPERTS, id="filtered-experts", marks=pytest.mark.slow),
    ],
)
def test_tokens_are_those_of_the_reference(
    triton_device: str, monkeypatch: pytest.MonkeyPatch, params: SamplingParams, shape: dict[str, Any] | ModelConfig
) -> None:
    expected = generate(triton_device, params, shape, attention_backend="torch", cuda_graphs=False)
    assert len({token for tokens in expected for token in tokens}) > (params.max_tokens or 0)
    if triton_device == "cpu":  # in the interpreter
        monkeypatch.setattr(executor, "select_backend", lambda *_: TritonBackend())
        for module in (activation, attention, decode_step, latent_store, moe, norm, sampler):
            monkeypatch.setattr(module, "runs_triton", lambda _: True)
    # On a GPU, latent attention in float32 is computed by PyTorch, which no graph holds.
    cuda_graphs: Any = "auto" if shape is LATENT and triton_device == "cuda" else True
    assert generate(triton_device, params, shape, cuda_graphs=cuda_graphs, max_lookahead_steps=4) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fp8", "fp8_block"])
def test_tokens_of_experts_in_float8_are_those_of_the_reference(
    triton_device: str, monkeypatch: pytest.MonkeyPatch, name: Quantized
) -> None:
    """Without quantised inputs, as on GPUs that do not multiply float8: only the order of sums differs then."""
    shape = SHAPE | EXPERTS | {"num_layers": 1, "hidden_size": 128, "num_attention_heads": 8, "num_kv_heads": 8}
    shape |= {"moe_intermediate_size": 128}
    for module in (expert_products, fp8_linear):
        monkeypatch.setattr(module, "multiplies_float8", lambda _: False)
    expected = generate(triton_device, GREEDY, shape, attention_backend="torch", cuda_graphs=False, quantization=name)
    if triton_device == "cpu":  # in the interpreter
        monkeypatch.setattr(executor, "dequantize_for_cpu", lambda _: None)
        monkeypatch.setattr(executor, "select_backend", lambda *_: TritonBackend())
        for module in (activation, attention, decode_step, fp8_linear, moe, norm, sampler):
            monkeypatch.setattr(module, "runs_triton", lambda _: True)
    assert generate(triton_device, GREEDY, shape, cuda_graphs=True, quantization=name) == expected
    assert len({token for tokens in expected for token in tokens}) > 6
