"""What `ModelConfig` reads from a `config.json`, as transformers 4 or 5 writes it; needs no torch."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from engine.models.hf_config import hf_config
from engine.models.model_config import ClampedGate, LatentSizes, ModelConfig, ModelError
from engine.models.rope_scaling import Llama3RopeScaling, YarnRopeScaling

CONF = Path(__file__).resolve().parents[3] / "conf" / "model"
MODELS = sorted(path for path in CONF.glob("*.yaml") if path.stem != "hf")
# `config.json` of meta-llama/Llama-3.1-8B, as transformers 4 writes it.
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 128256,
}


def test_both_forms_of_a_file_are_the_same_model() -> None:
    old = ModelConfig.from_hf(LLAMA)
    new = {key: value for key, value in LLAMA.items() if key not in ("rope_theta", "rope_scaling", "torch_dtype")}
    new |= {"dtype": "bfloat16", "rope_parameters": {**LLAMA["rope_scaling"], "rope_theta": 500000.0}}
    assert ModelConfig.from_hf(new) == old
    assert old.rope_theta == 500000.0
    assert old.rope_scaling == Llama3RopeScaling(8.0, 1.0, 4.0, 8192)
    assert (old.family, old.dtype, old.head_dim, old.eos_token_ids) == ("llama", "bfloat16", 128, (128001,))


def test_missing_optional_keys_have_the_values_of_transformers() -> None:
    optional = ("num_key_value_heads", "rope_theta", "rope_scaling", "rms_norm_eps", "torch_dtype", "eos_token_id")
    config = ModelConfig.from_hf({key: value for key, value in LLAMA.items() if key not in optional})
    assert (config.num_kv_heads, config.rope_theta, config.rms_norm_eps) == (32, 10000.0, 1e-6)
    assert (config.rope_scaling, config.dtype, config.eos_token_ids) == (None, "float32", ())
    assert (
        ModelConfig.from_hf(LLAMA | {"architectures": ["Qwen3ForCausalLM"], "num_attention_heads": 64}).head_dim == 128
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"architectures": None}, "architectures is missing"),
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel.* is not supported, only Qwen3ForCausalLM, Qwen3Moe"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "original_max_position_embeddings is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "rope_type='linear' is not supported"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor is missing"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported, only 'silu'"),
        ({"use_sliding_window": True}, "use_sliding_window=True"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: quant_method=None is not supported"),
        ({"torch_dtype": "float8_e4m3fn"}, "dtype='float8_e4m3fn' is not supported"),
        ({"num_key_value_heads": 5}, "num_key_value_heads=5 does not divide 32 heads"),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, "num_experts is missing"),
    ],
)
def test_what_is_missing_or_unsupported_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as error:
        ModelConfig.from_hf(LLAMA | change)
    assert "\n" not in str(error.value)


def test_layers_with_experts() -> None:
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
    moe = LLAMA | {"architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 6} | experts
    config = ModelConfig.from_hf(moe | {"decoder_sparse_step": 2, "mlp_only_layers": [3]})
    assert [config.has_experts(layer) for layer in range(6)] == [False, True, False, False, False, True]
    assert (config.num_experts, config.num_experts_per_token, config.norm_topk_prob) == (8, 2, True)
    assert all(ModelConfig.from_hf(moe).has_experts(layer) for layer in range(6))
    assert not any(ModelConfig.from_hf(LLAMA).has_experts(layer) for layer in range(6))


# `config.json` of openai/gpt-oss-20b and deepseek-ai/DeepSeek-V2-Lite without the keys that are those of LLAMA.
GPT_OSS: dict[str, Any] = LLAMA | {
    "architectures": ["GptOssForCausalLM"], "attention_bias": True, "experts_per_token": 4, "head_dim": 64,
    "hidden_size": 2880, "initial_context_length": 4096, "intermediate_size": 2880, "num_attention_heads": 64,
    "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_local_experts": 32, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12, "swiglu_limit": 7.0, "rope_theta": 150000,
    "rope_scaling": {
        "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
        "rope_type": "yarn", "truncate": False,
    },
    "quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn"], "quant_method": "mxfp4"},
}  # fmt: skip
DEEPSEEK: dict[str, Any] = LLAMA | {
    "architectures": ["DeepseekV2ForCausalLM"], "first_k_dense_replace": 1, "hidden_size": 2048, "kv_lora_rank": 512,
    "intermediate_size": 10944, "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "topk_group": 1,
    "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": False, "num_attention_heads": 16,
    "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16, "q_lora_rank": None,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "routed_scaling_factor": 1.0, "scoring_func": "softmax",
    "topk_method": "greedy", "v_head_dim": 128, "rope_theta": 10000,
    "rope_scaling": {
        "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096, "type": "yarn",
    },
}  # fmt: skip


def test_published_models_of_today() -> None:
    config = ModelConfig.from_hf(GPT_OSS)
    assert config.full_layers == tuple(range(1, 24, 2)) and config.num_sliding_layers == 12 and config.mxfp4
    assert [config.window_of(layer) for layer in range(3)] == [128, 0, 128]
    assert config.clamped_gate == ClampedGate(1.702, 7.0) and config.moe_intermediate_size == 2880
    yarn = YarnRopeScaling(32.0, 4096, 32.0, 1.0, False, 0.1 * math.log(32) + 1, 1.0)
    assert config.rope_scaling == yarn
    without = {key: value for key, value in GPT_OSS.items() if key != "layer_types"}
    assert ModelConfig.from_hf(without) == config
    config = ModelConfig.from_hf(DEEPSEEK)
    assert config.latent == LatentSizes(512, 0, 128, 64, 128) and config.latent.width == 576
    assert (config.num_kv_heads, config.head_dim, config.rope_dim, config.num_shared_experts) == (1, 192, 64, 2)
    assert [config.has_experts(layer) for layer in range(3)] == [False, True, True]
    yarn = YarnRopeScaling(40.0, 4096, 32.0, 1.0, True, 1.0, (0.0707 * math.log(40) + 1) ** 2)
    assert config.rope_scaling is not None
    assert asdict(config.rope_scaling) == pytest.approx(asdict(yarn))
    for change in ({"topk_method": "group_limited_greedy"}, {"norm_topk_prob": True}, {"attention_bias": True}):
        with pytest.raises(ModelError, match=f"{next(iter(change))}=.* is not supported, only"):
            ModelConfig.from_hf(DEEPSEEK | change)
    fp8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    with pytest.raises(ModelError, match="float8 weights of the family deepseek_v2 are not supported"):
        ModelConfig.from_hf(DEEPSEEK | fp8)


def test_a_folder_is_read_with_its_generation_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert ModelConfig.load(tmp_path) == ModelConfig.from_hf(LLAMA)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [128001, 128008, 128009]}')
    assert ModelConfig.load(tmp_path).eos_token_ids == (128001, 128008, 128009)


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "No such file"), ("{", "not JSON"), ("[]", "not a JSON object"), ("\xff", "not text in UTF-8")],
)
def test_a_folder_that_cannot_be_read_is_refused(text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(ModelError, match=message):
        ModelConfig.load(tmp_path)
    with pytest.raises(ModelError, match="no such model folder"):
        ModelConfig.load(tmp_path / "nowhere")


def read(path: Path) -> dict[str, Any]:
    shape = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(shape, dict)
    return {str(key): value for key, value in shape.items()}


@pytest.mark.parametrize(
    ("value", "window"),
    [({"sliding_window": None}, 0), ({}, 4096), ({"sliding_window": 64}, 64), ({"sliding_window": 8192}, 0)],
)
def test_the_window_of_mistral(value: dict[str, Any], window: int) -> None:
    data = {**LLAMA, "architectures": ["MistralForCausalLM"], "max_position_embeddings": 8192, "attention_bias": True}
    config = ModelConfig.from_hf({key: each for key, each in data.items() if key != "rope_scaling"} | value)
    assert (config.family, config.sliding_window, config.attention_bias) == ("mistral", window, False)
    assert config.num_sliding_layers == (config.num_layers if window else 0)


def test_a_shape_with_parameters_that_no_family_has_is_refused() -> None:
    shape = read(next(path for path in MODELS if path.stem == "qwen3-8b"))
    with pytest.raises(ModelError, match="extra_layer_parameters=7168 is not supported by the real engine"):
        ModelConfig.from_shape(shape | {"extra_layer_parameters": 7168})


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_every_model_of_the_config_tree_is_a_known_one(path: Path) -> None:
    shape = read(path)
    of_families = path.stem.startswith(
        ("llama-3", "mistral", "qwen2.5", "qwen3-", "mixtral", "gpt-oss", "tiny", "phi-4")
    )
    if shape.get("blocks") or not of_families:
        with pytest.raises(ModelError, match="not (supported|built from sizes) by the real engine; use engine=sim"):
            ModelConfig.from_shape(shape)
        return
    config = ModelConfig.from_shape({"qk_norm": False, **shape})
    families = {
        "llama": "llama",
        "mistral": "mistral",
        "qwen2.5": "qwen2",
        "mixtral": "mixtral",
        "gpt-oss": "gpt_oss",
        "phi": "llama",
    }
    moe = "qwen3_moe" if "num_experts" in shape else "qwen3"
    family = next((family for start, family in families.items() if path.stem.startswith(start)), moe)
    assert config.family == family
    same = {key: value for key, value in shape.items() if key not in ("name", "defaults", "quantization")}
    assert {key: getattr(config, key) for key in same} == same
    assert (config.rope_scaling is not None) == (family in ("llama", "gpt_oss"))


def test_the_family_of_a_shape_can_be_given() -> None:
    shape = read(CONF / "qwen3-0.6b.yaml")
    assert ModelConfig.from_shape(shape | {"family": "qwen2"}).family == "qwen2"
    assert ModelConfig.from_shape(shape | {"name": "Qwen/Qwen2.5-0.5B"}).family == "qwen2"
    with pytest.raises(ModelError, match="family='gpt2' is not supported, only qwen3, qwen3_moe, qwen2, llama"):
        hf_config(shape | {"family": "gpt2"})
