"""Which keys of a checkpoint's `config.json` and `hf_quant_config.json` are understood, or known to be harmless.

Harmless keys change no time, memory or length. All others are named in a note: they may change what is simulated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_READ = {
    "architectures", "attention_bias", "attention_out_bias", "attn_type_list", "compression_config",
    "decoder_sparse_step", "dtype", "experts_per_token", "head_dim", "hidden_size", "intermediate_size", "layer_types",
    "max_position_embeddings", "max_window_layers", "mlp_bias", "moe_intermediate_size", "num_attention_heads",
    "num_experts", "num_experts_per_tok", "num_hidden_layers", "num_key_value_heads", "num_local_experts",
    "quantization_config", "rope_parameters", "rope_scaling", "sliding_window", "sliding_window_pattern",
    "tie_word_embeddings", "torch_dtype", "use_bias", "use_sliding_window", "vocab_size",
}  # fmt: skip
# Tokens, texts, training, sampling, constants of formulas, rotary embeddings, layers that draft tokens (which are not
# loaded unless they are asked for), and how transformers writes its files.
_HARMLESS = {
    "add_cross_attention", "attention_dropout", "attention_head_dim", "attention_multiplier", "attn_logit_softcapping",
    "auto_map", "bad_words_ids", "begin_suppress_tokens", "boi_token_index", "bos_token_id", "cache_implementation",
    "chunk_size_feed_forward", "cla_share_factor", "cross_attention_hidden_size", "decoder_start_token_id",
    "diversity_penalty", "do_sample", "early_stopping", "embd_pdrop", "embedding_multiplier",
    "encoder_no_repeat_ngram_size", "eod_id", "eod_token_id", "eoi_token_index", "eos_token_id",
    "exponential_decay_length_penalty", "final_logit_softcapping", "finetuning_task", "forced_bos_token_id",
    "forced_eos_token_id", "hidden_act", "hidden_activation", "hidden_dropout", "id2label", "im_end_id", "im_start_id",
    "image_token_id", "image_token_index", "initial_context_length", "initializer_range", "is_decoder", "label2id",
    "layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta", "length_penalty",
    "logits_scaling", "max_length", "min_length", "mlp_hidden_act", "mm_tokens_per_image", "model_type",
    "mtp_transformer_layers", "_name_or_path", "no_repeat_ngram_size", "no_rope_layer_interval", "no_rope_layers",
    "norm_topk_prob", "norm_type", "num_beam_groups", "num_beams", "num_mtp_modules", "num_return_sequences",
    "org_vocab_size", "original_max_position_embeddings", "output_attentions", "output_hidden_states",
    "output_router_logits", "output_scores", "pad_id", "pad_token_id", "partial_rotary_factor", "prefix",
    "pretraining_tp", "problem_type", "pruned_heads", "qk_norm_type", "query_pre_attn_scalar", "remove_invalid_values",
    "repetition_penalty", "resid_pdrop", "residual_dropout", "residual_multiplier", "return_dict",
    "return_dict_in_generate", "rms_norm_eps", "rope_local_base_freq", "rope_theta", "rotary_dim",
    "router_aux_loss_coef", "router_jitter_noise", "scoring_func", "sep_id", "sep_token_id", "suppress_tokens",
    "swiglu_limit", "task_specific_params", "temperature", "text_end_id", "text_start_id", "tf_legacy_loss",
    "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p", "torchscript", "transformers_version", "typical_p",
    "unsloth_fixed", "unsloth_version", "use_bfloat16", "use_cache", "use_mtp", "use_qk_norm", "use_rotary_pos_emb",
    "use_routing_bias", "video_token_id", "vision_end_token_id", "vision_start_token_id",
}  # fmt: skip
_ROPE = {
    "alpha", "attention_factor", "beta_fast", "beta_slow", "factor", "high_freq_factor", "long_factor",
    "low_freq_factor", "mrope_interleaved", "mrope_section", "mscale", "mscale_all_dim",
    "original_max_position_embeddings", "partial_rotary_factor", "rope_theta", "rope_type", "short_factor",
    "truncate", "type",
}  # fmt: skip
_WEIGHTS = {
    "activation_scheme", "activation_scale_ub", "bits", "checkpoint_format", "config_groups", "damp_percent",
    "desc_act", "exclude_modules", "fmt", "format", "global_compression_ratio", "group_size", "has_zero_point",
    "ignore", "ignored_layers", "is_marlin_format", "kv_cache_quant_algo", "kv_cache_scheme", "lm_head", "meta",
    "model_file_base_name", "model_name_or_path", "modules_to_not_convert", "pre_quant_scale", "producer",
    "quant_algo", "quant_method", "quantization_status", "scale_fmt", "static_groups", "sym", "true_sequential",
    "version", "w_bit", "weight_block_size", "zero_point",
}  # fmt: skip
TOWERS = ("vision_config", "audio_config")
_ENTRIES = 20  # names in a note


def other_keys(data: Mapping[str, Any], rope: Mapping[str, Any], weights: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys of the text half of a `config.json`, of its rotary options and of its description of the weights' format
    that nothing is known of; keys with null, false, 0 or an empty value say nothing and are left out."""
    return (
        *_others("", data, _READ | _HARMLESS),
        *_others("rope_scaling.", rope, _ROPE),
        *_others("quantization.", weights, _WEIGHTS),
    )


def is_harmless(key: str) -> bool:
    """Whether a key of a `config.json` changes nothing that is simulated."""
    return key in _HARMLESS


def ignored_notes(keys: Iterable[str]) -> list[str]:
    """Notes on these keys: one on a tower, and one on all others."""
    towers, names = [key for key in keys if key in TOWERS], [key for key in keys if key not in TOWERS]
    notes = [f"the text half of the model is simulated: the weights and inputs of {key} are left out" for key in towers]
    if not names:
        return notes
    more = f" and {len(names) - _ENTRIES} more" if len(names) > _ENTRIES else ""
    said = f"model.config has keys that are not understood and have no effect here: {', '.join(names[:_ENTRIES])}{more}"
    return [*notes, said]


def _others(prefix: str, found: Mapping[str, Any], known: set[str]) -> list[str]:
    return [f"{prefix}{key}"[:60] for key, value in found.items() if key not in known and value]
