"""A `config.json` for a model of which only the shape is known. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from engine.json_file import Fields, ModelError
from engine.model_sizes import MOST_TOKENS
from engine.models.families import ARCHITECTURES, Family


def hf_config(model: Mapping[str, Any]) -> dict[str, Any]:
    """A `config.json` for the fields of a `conf/model/*.yaml` file, for a model with random weights.

    The file states shapes only; all other values are those of the family's published models. The model has no EOS
    token, because a random one would end answers at random. The family is the optional field `family`; without it, the
    family is guessed from `name`, and for other names from `qk_norm`.

    Raises:
        ModelError: a field is missing, the family is not supported, or the model has learned positions, windows, or
            parameters that the family has not.
    """
    fields = Fields(model, "model")
    family = model.get("family") or _guess_family(model)
    # A shape states too little of latent attention.
    families = [each for each in get_args(Family) if not each.startswith("deepseek")]
    if family not in families:
        raise ModelError(f"family={family!r} is not supported, only {', '.join(families)}")
    _check_supported(model, family)
    config: dict[str, Any] = {
        "architectures": [name for name, value in ARCHITECTURES.items() if value == family],
        "model_type": family,
        "num_hidden_layers": fields.value("num_layers"),
        "num_key_value_heads": fields.value("num_kv_heads"),
        "rms_norm_eps": 1e-6 if family.startswith("qwen") else 1e-5,
        "rope_parameters": _rope(fields, family),
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    same = ("hidden_size", "num_attention_heads", "head_dim", "intermediate_size", "vocab_size", "dtype")
    config |= {key: fields.value(key) for key in (*same, "tie_word_embeddings", "max_position_embeddings")}
    if family in ("mistral", "mixtral", "gpt_oss"):
        config["sliding_window"] = model.get("sliding_window") or None
    if family in ("mixtral", "gpt_oss"):  # whose experts are as wide as a dense MLP
        config |= {"intermediate_size": fields.value("moe_intermediate_size")}
        config |= {"num_local_experts": fields.value("num_experts"), "attention_bias": family == "gpt_oss"}
        config["num_experts_per_tok"] = fields.value("num_experts_per_token")
    if family == "qwen3_moe":
        experts = {"num_experts_per_tok": fields.value("num_experts_per_token"), "norm_topk_prob": True}
        config |= {key: fields.value(key) for key in ("num_experts", "moe_intermediate_size")}
        config |= {**experts, "decoder_sparse_step": 1, "mlp_only_layers": []}
    return config


def _check_supported(model: Mapping[str, Any], family: str) -> None:
    """Raise ModelError for what the layers of the family have not."""
    if model.get("blocks"):
        raise ModelError("blocks of other kinds are not built from sizes by the real engine; use engine=sim")
    num_layers = model.get("num_layers") or 0
    windows = {"mistral": num_layers, "mixtral": num_layers, "gpt_oss": -(-num_layers // 2)}
    supported = {
        "learned_positions": False,
        "sliding_window": model.get("num_sliding_layers") == windows.get(family),
        "extra_layer_parameters": family == "gpt_oss",  # biases and sinks
    }
    for key, is_supported in supported.items():
        if model.get(key) and not is_supported:
            raise ModelError(f"{key}={model[key]} is not supported by the real engine; use engine=sim")


def _rope(fields: Fields, family: str) -> dict[str, Any]:
    if family == "gpt_oss":
        scaling = {"factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
        return {"rope_type": "yarn", "rope_theta": 150_000.0, "original_max_position_embeddings": 4096, **scaling}
    if family != "llama":
        return {"rope_type": "default", "rope_theta": 1_000_000.0}
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 500_000.0}
    if fields.count("max_position_embeddings", most=MOST_TOKENS) > 8192:  # Llama 3.1 and later
        scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        rope |= {"rope_type": "llama3", "original_max_position_embeddings": 8192, **scaling}
    return rope


def _guess_family(model: Mapping[str, Any]) -> str:
    name = str(model.get("name", "")).lower()
    if "llama" in name:
        return "llama"
    if "qwen2" in name:
        return "qwen2"
    if "mistral" in name and not model.get("num_experts"):
        return "mistral"
    if "gpt-oss" in name:
        return "gpt_oss"
    is_normed = model.get("qk_norm", True) and "mixtral" not in name
    if not model.get("num_experts"):
        return "qwen3" if is_normed else "llama"
    return "qwen3_moe" if is_normed else "mixtral"
