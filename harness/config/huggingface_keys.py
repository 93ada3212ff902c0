"""Which keys of a checkpoint's `config.json` and `hf_quant_config.json` are understood, or known to be harmless.

Harmless keys change no time, memory or length. All others are named in a note: they may change what is simulated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_READ = {
    "architectures", "attention_bias", "compression_config", "decoder_sparse_step", "dtype", "experts_per_token",
    "head_dim", "hidden_size", "intermediate_size", "layer_types", "max_position_embeddings", "max_window_layers",
    "moe_intermediate_size", "num_attention_heads", "num_experts", "num_experts_per_tok", "num_hidden_layers",
    "num_key_value_heads", "num_local_experts", "quantization_config", "rope_parameters", "rope_scaling",
    "sliding_window", "tie_word_embeddings", "torch_dtype", "use_sliding_window", "vocab_size",
}  # fmt: skip
# Tokens, texts, training, sampling, constants of formulas, and how transformers writes its files.
_HARMLESS = {
    "_name_or_path", "add_cross_attention", "attention_dropout", "auto_map", "bad_words_ids", "begin_suppress_tokens",
    "bos_token_id", "chunk_size_feed_forward", "cross_attention_hidden_size", "decoder_start_token_id",
    "diversity_penalty", "do_sample", "early_stopping", "embd_pdrop", "encoder_no_repeat_ngram_size", "eos_token_id",
    "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "hidden_act",
    "hidden_dropout", "id2label", "initial_context_length", "initializer_range", "is_decoder", "label2id",
    "length_penalty", "max_length", "min_length", "mlp_bias", "model_type", "no_repeat_ngram_size", "norm_topk_prob",
    "num_beam_groups", "num_beams", "num_return_sequences", "output_attentions", "output_hidden_states",
    "output_router_logits", "output_scores", "pad_token_id", "prefix", "pretraining_tp", "problem_type",
    "pruned_heads", "remove_invalid_values", "repetition_penalty", "resid_pdrop", "return_dict",
    "return_dict_in_generate", "rms_norm_eps", "rope_theta", "router_aux_loss_coef", "router_jitter_noise",
    "sep_token_id", "suppress_tokens", "swiglu_limit", "task_specific_params", "temperature", "tf_legacy_loss",
    "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p", "torchscript", "transformers_version", "typical_p",
    "unsloth_fixed", "unsloth_version", "use_bfloat16", "use_cache",
}  # fmt: skip
_ROPE = {
    "attention_factor", "beta_fast", "beta_slow", "factor", "high_freq_factor", "long_factor", "low_freq_factor",
    "mscale", "mscale_all_dim", "original_max_position_embeddings", "partial_rotary_factor", "rope_theta", "rope_type",
    "short_factor", "truncate", "type",
}  # fmt: skip
_WEIGHTS = {
    "activation_scheme", "activation_scale_ub", "bits", "checkpoint_format", "config_groups", "damp_percent",
    "desc_act", "exclude_modules", "fmt", "format", "global_compression_ratio", "group_size", "has_zero_point",
    "ignore", "ignored_layers", "is_marlin_format", "kv_cache_quant_algo", "kv_cache_scheme", "lm_head", "meta",
    "model_file_base_name", "model_name_or_path", "modules_to_not_convert", "pre_quant_scale", "producer",
    "quant_algo", "quant_method", "quantization_status", "scale_fmt", "static_groups", "sym", "true_sequential",
    "version", "w_bit", "weight_block_size", "zero_point",
}  # fmt: skip
_ENTRIES = 20  # names in a note


def other_keys(data: Mapping[str, Any], rope: Mapping[str, Any], weights: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys of a `config.json`, of its rotary options and of its description of the weights' format that nothing is
    known of; keys with null, false, 0 or an empty value say nothing and are left out."""
    return (
        *_others("", data, _READ | _HARMLESS),
        *_others("rope_scaling.", rope, _ROPE),
        *_others("quantization.", weights, _WEIGHTS),
    )


def ignored_text(keys: Iterable[str]) -> str:
    """A note on these keys."""
    names = list(keys)
    more = f" and {len(names) - _ENTRIES} more" if len(names) > _ENTRIES else ""
    return f"model.config has keys that are not understood and have no effect here: {', '.join(names[:_ENTRIES])}{more}"


def _others(prefix: str, found: Mapping[str, Any], known: set[str]) -> list[str]:
    return [f"{prefix}{key}"[:60] for key, value in found.items() if key not in known and value]
