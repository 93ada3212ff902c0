"""Small random models of every family, saved by transformers, and the logits that transformers computes with them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 131,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "initializer_range": 0.1,  # large enough that different prompts give different logits
    "bos_token_id": None,
    "eos_token_id": None,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,  # so that some wavelengths are kept, some stretched and some between
}
EXPERTS: dict[str, Any] = {"head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 8.0, "original_max_position_embeddings": 32}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4, "kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
    "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}  # fmt: skip


def _config(kind: str, **keys: Any) -> transformers.PreTrainedConfig:
    """Made when it is used: the modules of a family take seconds to import."""
    return getattr(transformers, kind)(**keys)


CONFIGS: dict[str, Callable[[], transformers.PreTrainedConfig]] = {
    "qwen3": partial(_config, "Qwen3Config", **SIZES, head_dim=32, rope_parameters={"rope_theta": 1e6}),
    "qwen3_moe": partial(_config, "Qwen3MoeConfig",
        **SIZES, **EXPERTS, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[1]
    ),
    "qwen2": partial(_config, "Qwen2Config", **SIZES),
    "qwen3_bias_tied": partial(_config, "Qwen3Config",
        **(SIZES | {"tie_word_embeddings": True}), head_dim=32, attention_bias=True
    ),
    "mistral": partial(_config, "MistralConfig", **SIZES, head_dim=32, sliding_window=7, rms_norm_eps=1e-5),
    "mixtral": partial(_config, "MixtralConfig", **SIZES, head_dim=16, num_local_experts=4, num_experts_per_tok=2),
    "gpt_oss": partial(_config, "GptOssConfig",
        **SIZES, head_dim=32, sliding_window=6, num_local_experts=8, num_experts_per_tok=3,
        rope_parameters={**YARN, "truncate": False},
    ),
    "deepseek_v2": partial(_config, "DeepseekV2Config",
        **SIZES | LATENT, q_lora_rank=None, rope_parameters={**YARN, "mscale": 0.707, "mscale_all_dim": 0.9}
    ),
    "deepseek_v3": partial(_config, "DeepseekV3Config",
        **SIZES | LATENT, q_lora_rank=20, n_group=4, topk_group=2, num_nextn_predict_layers=0,
        rope_parameters={**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    ),
    "llama": partial(_config, "LlamaConfig", **SIZES, head_dim=32, rms_norm_eps=1e-5, rope_parameters=LLAMA3_ROPE),
}  # fmt: skip
VARIANTS = tuple(CONFIGS)


def save(variant: str, folder: Path, **options: Any) -> Path:
    """Save a model whose weights, biases and norms are random; `options` go to `save_pretrained`. Returns `folder`."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[variant]())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 or name.endswith("_bias"):
                parameter.add_(0.1 * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(0.0, 0.1)
    model.save_pretrained(folder, **options)
    return folder


def prompts() -> list[list[int]]:
    """Three prompts of odd lengths; the third one begins with 12 tokens of the first one."""
    generator = torch.Generator().manual_seed(1)
    first, second, third = (torch.randint(0, 131, (n,), generator=generator).tolist() for n in (33, 21, 30))
    return [first, second, first[:12] + third[12:]]


def reference_logits(folder: Path, computed_in: torch.dtype, rounded_to: torch.dtype) -> list[Tensor]:
    """transformers' logits of each prompt, float32 `[tokens, V]`, computed from weights rounded to `rounded_to`."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=rounded_to)
    model.to(computed_in).eval()
    with torch.inference_mode():
        return [model(torch.tensor([prompt])).logits[0].float() for prompt in prompts()]


def relative_error(actual: Tensor, expected: Tensor) -> Tensor:
    """`[tokens]`: for each token, its largest absolute error divided by its largest absolute logit."""
    return (actual - expected).abs().amax(-1) / expected.abs().amax(-1)
