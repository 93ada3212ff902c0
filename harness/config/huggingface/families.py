"""What the architecture of a checkpoint decides, and no key of its `config.json`.

    family       q and k normed   experts of width         layers with a window             otherwise
    Qwen2        no                                        from max_window_layers on, if use_sliding_window
    Qwen3, -VL   per head         moe_intermediate_size    the same
    MiMo         no                                        the same
    Llama        no                                        none
    Mistral      no                                        all, unless sliding_window is null
    Mixtral      no               intermediate_size        all, if sliding_window is given
    gpt-oss      no               intermediate_size        all but each second
    Seed-OSS     no                                        none
    Ernie-4.5    no                                        none
    Hunyuan      per head                                  none
    Granite      no                                        none
    Phi-3, -4    no                                        all, if sliding_window is given
    SmolLM3      no                                        as layer_types says
    Olmo-2       over all heads                            none
    Olmo-3       over all heads                            all but each fourth
    Exaone-4     per head                                  as sliding_window_pattern says
    Gemma-3      per head                                  as sliding_window_pattern says   four norms in a layer

Qwen3-VL and Gemma-3 keep the sizes of their text half in `text_config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

_SIZES_OF_GEMMA = {  # which its published files leave out
    "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 262208, "max_position_embeddings": 131072, "sliding_window": 4096,
    "tie_word_embeddings": True,
}  # fmt: skip


class Family(NamedTuple):
    """Attributes:
    qk_norm: what a norm of query and key spans.
    head_dim: where the file states none; None for hidden_size / num_attention_heads.
    experts_of: the key with the width of an expert.
    windows: which layers have the window that the file states: none, those from `max_window_layers` on, all, all but
        each `period`-th, or as `layer_types` says, which counts in each case.
    period: of layers without a window, where no `sliding_window_pattern` says it.
    biases: the keys that say whether query, key and value, attention's output, and the MLP have biases; None where the
        biases are not counted.
    num_norms: of the hidden state, in a layer.
    scaled_positions: whether `max_position_embeddings` already is the longest context, whatever the rotary scaling.
    has_tower: whether the file describes a tower for images beside `text_config`.
    defaults: values of keys that files leave out.
    """

    qk_norm: Literal["none", "head", "heads"] = "none"
    head_dim: int | None = None
    experts_of: str | None = None
    windows: Literal["none", "late", "all", "periodic", "typed"] = "none"
    period: int = 0
    biases: tuple[str, str, str] | None = ("attention_bias", "attention_bias", "mlp_bias")
    num_norms: int = 2
    scaled_positions: bool = False
    has_tower: bool = False
    defaults: Mapping[str, Any] = MappingProxyType({})


_TIED = {"tie_word_embeddings": True}
_MOE = "moe_intermediate_size"
_QWEN3 = Family("head", head_dim=128, windows="late")
_GEMMA3 = Family(
    "head", head_dim=256, windows="periodic", period=6, num_norms=4, scaled_positions=True, defaults=_SIZES_OF_GEMMA
)
FAMILIES = {
    "Qwen2ForCausalLM": Family(windows="late", biases=None),
    "Qwen3ForCausalLM": _QWEN3,
    "Qwen3MoeForCausalLM": Family("head", experts_of=_MOE, windows="late"),
    "MiMoForCausalLM": Family(windows="late", biases=None),
    "LlamaForCausalLM": Family(),
    "MistralForCausalLM": Family(windows="all", biases=None, defaults={"sliding_window": 4096}),
    "MixtralForCausalLM": Family(experts_of="intermediate_size", windows="all"),
    "GptOssForCausalLM": Family(head_dim=64, experts_of="intermediate_size", windows="periodic", period=2, biases=None),
    "SeedOssForCausalLM": Family(head_dim=128, biases=("attention_bias", "attention_out_bias", "mlp_bias")),
    "Ernie4_5ForCausalLM": Family(head_dim=128, biases=("use_bias",) * 3, defaults=_TIED),
    "HunYuanDenseV1ForCausalLM": Family("head"),
    "GraniteForCausalLM": Family(),
    "Phi3ForCausalLM": Family(windows="all"),
    "SmolLM3ForCausalLM": Family(windows="typed", defaults=_TIED),
    "Olmo2ForCausalLM": Family("heads"),
    "Olmo3ForCausalLM": Family("heads", windows="periodic", period=4),
    "Exaone4ForCausalLM": Family("head", windows="periodic", period=4),
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": _GEMMA3._replace(has_tower=True),
    "Qwen3VLForConditionalGeneration": _QWEN3._replace(has_tower=True),
    "Qwen3VLMoeForConditionalGeneration": Family("head", experts_of=_MOE, windows="late", has_tower=True),
}
