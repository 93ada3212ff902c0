"""The families of models that the real engine runs, by the architecture that `config.json` names."""

from __future__ import annotations

from typing import Literal

Family = Literal["qwen3", "qwen3_moe", "qwen2", "llama", "mistral", "mixtral", "gpt_oss", "deepseek_v2", "deepseek_v3"]

ARCHITECTURES: dict[str, Family] = {
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Qwen2ForCausalLM": "qwen2",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "GptOssForCausalLM": "gpt_oss",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
}
