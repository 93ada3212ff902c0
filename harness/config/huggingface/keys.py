"""Which keys of a checkpoint's `config.json` and `hf_quant_config.json` are understood, or known to be harmless.

Harmless keys change no time, memory or length. All others are named in a note: they may change what is simulated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_READ = {
    "architectures", "attention_bias", "attention_chunk_size", "attention_k_eq_v", "attention_out_bias",
    "attn_type_list", "block_configs", "compression_config", "conv_kernel", "decoder_sparse_step", "dtype",
    "enable_moe_block", "experts_per_token", "first_k_dense_replace", "full_attention_interval", "global_head_dim",
    "hc_mult", "head_dim", "hidden_size", "hybrid_layer_pattern", "hybrid_override_pattern", "index_head_dim",
    "index_kpool", "index_n_heads", "index_topk", "indexer_types", "interleave_moe_layer_step", "intermediate_size",
    "intermediate_size_mlp", "kv_lora_rank", "layer_types", "layers_block_type", "linear_attn_config",
    "linear_conv_kernel_dim", "linear_key_head_dim", "linear_num_key_heads", "linear_num_value_heads",
    "linear_value_head_dim", "mamba_head_dim", "mamba_num_heads", "mamba_ssm_cache_dtype", "mamba_ssm_dtype",
    "max_position_embeddings", "max_window_layers", "mla_use_output_gate", "mlp_bias", "mlp_layer_types",
    "moe_intermediate_size", "moe_latent_size", "moe_layer_freq", "moe_shared_expert_intermediate_size", "n_groups",
    "n_routed_experts", "n_shared_experts", "num_attention_heads", "num_experts", "num_experts_per_tok",
    "num_experts_per_token", "num_global_key_value_heads", "num_hidden_layers", "num_key_value_heads",
    "num_local_experts", "num_shared_experts", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
    "quantization_config", "rope_parameters", "rope_scaling", "routed_expert_hidden_size",
    "shared_expert_intermediate_size", "sliding_window", "sliding_window_pattern", "ssm_state_size", "swa_head_dim",
    "swa_num_attention_heads", "swa_num_key_value_heads", "swa_v_head_dim", "tie_word_embeddings", "top_k_experts",
    "topk_method", "torch_dtype", "use_bias", "use_qk_norm", "use_sliding_window", "v_head_dim", "vocab_size",
}  # fmt: skip
# Tokens, texts, training, sampling, constants of formulas, rotary embeddings, layers that draft tokens (which are not
# loaded unless they are asked for), and how transformers writes its files.
_HARMLESS = {
    "activation_situ_beta", "activation_situ_linear_beta", "add_cross_attention", "add_swa_attention_sink_bias",
    "attention_dropout", "attention_head_dim", "attention_multiplier", "attention_value_scale",
    "attn_logit_softcapping", "attn_output_gate", "auto_map", "aux_loss_alpha", "bad_words_ids",
    "base_model_ep_plan", "begin_suppress_tokens", "boi_token_index", "bos_token_id", "cache_implementation",
    "chunk_size", "chunk_size_feed_forward", "cla_share_factor", "cross_attention_hidden_size",
    "decoder_start_token_id", "diversity_penalty", "do_sample", "early_stopping", "embd_pdrop",
    "embedding_multiplier", "encoder_no_repeat_ngram_size", "eod_id", "eod_token_id", "eoi_token_index",
    "eos_token_id", "ep_size", "expand", "exponential_decay_length_penalty", "final_logit_softcapping",
    "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "hc_eps", "hc_sinkhorn_iters", "hidden_act",
    "hidden_activation", "hidden_dropout", "id2label", "im_end_id", "im_start_id", "image_token_id",
    "image_token_index", "index_kpool_always_select_tail", "index_kpool_compress", "index_share_for_mtp_iteration",
    "index_skip_topk_offset", "index_topk_freq", "indexer_rope_interleave", "initial_context_length",
    "initializer_range", "is_decoder", "label2id", "latent_moe_use_norm", "layer_norm_epsilon", "layer_rope_theta",
    "layernorm_epsilon", "layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta",
    "length_penalty", "linear_head_dim", "linear_lower_bound", "linear_num_heads", "logits_scaling",
    "mamba_hidden_act", "max_length", "mhc", "min_length", "mla_use_nope", "mlp_hidden_act", "mm_tokens_per_image",
    "model_type", "moe_renormalize", "moe_router_activation_func", "moe_router_dtype", "moe_router_scaling_factor",
    "moe_shared_expert_overlap", "mtp_hybrid_override_pattern", "mtp_layers_block_type", "mtp_num_hidden_layers",
    "mtp_transformer_layers", "mtp_use_dedicated_embeddings", "n_group", "_name_or_path", "no_repeat_ngram_size",
    "no_rope_layer_interval", "no_rope_layers", "norm_eps", "norm_topk_prob", "norm_type", "num_beam_groups",
    "num_beams", "num_expert_group", "num_logits_to_keep", "num_mtp_modules", "num_nextn_predict_layers",
    "num_return_sequences", "org_vocab_size", "original_max_position_embeddings", "output_attentions",
    "output_gate_type", "output_hidden_states", "output_multiplier", "output_router_logits", "output_scores",
    "pad_id", "pad_token_id", "partial_rotary_factor", "post_norm_eps", "prefix", "pretraining_tp", "problem_type",
    "pruned_heads", "qk_head_dim", "qk_norm_type", "qk_scale_factor", "query_pre_attn_scalar",
    "remove_invalid_values", "repetition_penalty", "rescale_prenorm_residual", "resid_pdrop", "residual_dropout",
    "residual_multiplier", "return_dict", "return_dict_in_generate", "rms_norm_eps", "rope_interleave",
    "rope_local_base_freq", "rope_theta", "rotary_dim", "routed_scaling_factor", "router_aux_loss_coef",
    "router_jitter_noise", "scoring_func", "sep_id", "sep_token_id", "seq_aux", "share_expert_dim",
    "sliding_window_size", "suppress_tokens", "swa_rope_theta", "swiglu_limit", "task_specific_params",
    "temperature", "text_end_id", "text_start_id", "tf_legacy_loss", "tie_encoder_decoder", "time_step_floor",
    "time_step_limit", "time_step_max", "time_step_min", "time_step_rank", "tokenizer_class", "top_k", "top_p",
    "topk_group", "torchscript", "transformers_version", "typical_p", "unsloth_fixed", "unsloth_version",
    "use_bfloat16", "use_bidirectional_attention", "use_cache", "use_conv_bias", "use_grouped_topk",
    "use_mamba_kernels", "use_moe_router_bias", "use_mtp", "use_rotary_pos_emb", "use_routing_bias",
    "video_token_id", "vision_end_token_id", "vision_start_token_id", "vocab_size_per_layer_input",
}  # fmt: skip
_ROPE = {
    "alpha", "attention_factor", "beta_fast", "beta_slow", "factor", "high_freq_factor", "long_factor",
    "low_freq_factor", "mrope_interleaved", "mrope_section", "mscale", "mscale_all_dim",
    "original_max_position_embeddings", "partial_rotary_factor", "rope_theta", "rope_type", "short_factor",
    "truncate", "type",
}  # fmt: skip
_WEIGHTS = {
    "activation_scale_ub", "activation_scheme", "bits", "checkpoint_format", "config_groups", "damp_percent",
    "desc_act", "exclude_modules", "fmt", "format", "global_compression_ratio", "group_size", "has_zero_point",
    "ignore", "ignored_layers", "is_marlin_format", "kv_cache_quant_algo", "kv_cache_scheme", "lm_head", "meta",
    "model_file_base_name", "model_name_or_path", "modules_to_not_convert", "moe_quant_algo", "pre_quant_scale",
    "producer", "quant_algo", "quant_method", "quantization_status", "quantized_layers", "scale_fmt",
    "static_groups", "sym", "true_sequential", "version", "w_bit", "weight_block_size", "zero_point",
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


def ignored_notes(keys: Iterable[str], *, has_tower: bool = False) -> list[str]:
    """Notes on these keys: one on a tower, and one on all others; `has_tower`: the one for images takes memory."""
    towers, names = [key for key in keys if key in TOWERS], [key for key in keys if key not in TOWERS]
    notes = [
        "the text half of the model is simulated: "
        + ("inputs" if has_tower and key == "vision_config" else "the weights and inputs")
        + f" of {key} are left out"
        for key in towers
    ]
    if not names:
        return notes
    more = f" and {len(names) - _ENTRIES} more" if len(names) > _ENTRIES else ""
    said = f"model.config has keys that are not understood and have no effect here: {', '.join(names[:_ENTRIES])}{more}"
    return [*notes, said]


def _others(prefix: str, found: Mapping[str, Any], known: set[str]) -> list[str]:
    return [f"{prefix}{key}"[:60] for key, value in found.items() if key not in known and value]
