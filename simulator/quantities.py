"""The range of each number that a user can give, the same in conf/, calibration files, profiles and imported profiles.

The limits are far from all that exists: a value beyond them has a wrong sign or a wrong unit.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`, both included; `is_whole` for integers only."""

    low: float
    high: float
    is_whole: bool = False

    def holds(self, value: object) -> bool:
        """Whether `value` is a number in this range; NaN is in none."""
        is_number = type(value) is int or (type(value) is float and not self.is_whole)
        return is_number and self.low <= value <= self.high  # type: ignore[operator]

    def scaled(self, factor: float) -> Range:
        """The same range in another unit."""
        return Range(self.low * factor, self.high * factor)

    def __str__(self) -> str:
        if self.is_whole:
            return f"an integer >= {self.low} and <= {self.high}"
        return f"a number >= {self.low:g} and <= {self.high:g}"


MAX_TOKENS = 2**31 - 1  # of a sequence: longer is a damaged file, and sums stay far from the end of int64
MAX_BLOCKS = 1 << 25  # the scheduler takes 50 bytes for a block

_COUNT = Range(1, 1 << 20, is_whole=True)
_TOKENS = Range(1, MAX_TOKENS, is_whole=True)
_TOKENS_OR_NONE = Range(0, MAX_TOKENS, is_whole=True)
_WIDTH = Range(1, 1 << 24, is_whole=True)
_HEADS = Range(1, 1 << 16, is_whole=True)
_EXPERTS = Range(0, 1 << 16, is_whole=True)
_BYTES_PER_S = Range(1e6, 1e16)
_EFFICIENCY = Range(1e-3, 1.0)
_FLOPS_EFFICIENCY = Range(1e-3, 1.25)  # above 1 where a GPU runs at clocks above those of its datasheet
_OVERHEAD_S = Range(0.0, 1.0)
_LINEAR_S = Range(0.0, 1e4)
_CALL_US = Range(1e-3, 6e7)  # files have times of whole nanoseconds
_ADDED_US = Range(0.0, 6e7)

RANGES = {
    # devices
    "memory_bytes": Range(1 << 20, 1 << 50, is_whole=True),
    "memory_bandwidth": _BYTES_PER_S,
    "link_bandwidth": _BYTES_PER_S,
    "flops": Range(1e8, 1e20),
    "memory_efficiency": _EFFICIENCY,
    "flops_efficiency": _FLOPS_EFFICIENCY,
    "link_latency_s": _OVERHEAD_S,
    "step_overhead_s": _OVERHEAD_S,
    "multiprocessors": Range(1, 1 << 16, is_whole=True),
    # models
    "num_layers": Range(1, 10_000, is_whole=True),
    "hidden_size": _WIDTH,
    "num_attention_heads": _HEADS,
    "num_kv_heads": _HEADS,
    "head_dim": _HEADS,
    "intermediate_size": _WIDTH,
    "vocab_size": _WIDTH,
    "max_position_embeddings": _TOKENS,
    "num_experts": _EXPERTS,
    "num_experts_per_token": _EXPERTS,
    "moe_intermediate_size": Range(0, 1 << 24, is_whole=True),
    "learned_positions": _TOKENS_OR_NONE,
    "sliding_window": _TOKENS_OR_NONE,
    "num_sliding_layers": Range(0, 10_000, is_whole=True),
    "extra_layer_parameters": Range(0, 1 << 32, is_whole=True),
    # limits of an engine
    "tensor_parallel_size": Range(1, 1 << 16, is_whole=True),
    "pipeline_parallel_size": Range(1, 1 << 10, is_whole=True),
    "replicas": Range(1, 1 << 12, is_whole=True),
    "block_size": _COUNT,
    "num_blocks": Range(1, MAX_BLOCKS, is_whole=True),
    "reserved_blocks": Range(0, MAX_BLOCKS, is_whole=True),
    "max_num_seqs": _COUNT,
    "max_num_batched_tokens": _TOKENS,
    "max_model_len": _TOKENS,
    "long_prefill_token_threshold": _TOKENS_OR_NONE,
    "max_padding": _TOKENS_OR_NONE,
    "max_lookahead_steps": _COUNT,
    "max_graph_tokens": Range(0, 1 << 16, is_whole=True),
    "num_speculative_tokens": Range(1, 128, is_whole=True),
    "prompt_lookup_min": _COUNT,
    "prompt_lookup_max": _COUNT,
    "draft_token_s": _OVERHEAD_S,
    "recompute_token_us": Range(1e-6, 1e9),
    "tier_gib": Range(0.0, 1 << 20),
    "tier_gb_per_s": _BYTES_PER_S.scaled(1e-9),
    "num_threads": Range(1, 1 << 12, is_whole=True),
    "temperature": Range(0.0, 1e3),
    "seed": Range(0, (1 << 63) - 1, is_whole=True),
    # constants of cost models
    "step_overhead_us": _OVERHEAD_S.scaled(1e6),
    "sequence_overhead_us": _OVERHEAD_S.scaled(1e6),
    "prefill_layer_us": _OVERHEAD_S.scaled(1e6),
    "mixing_factor": Range(0.0, 10.0),
    "kernel_factor": Range(1e-3, 1e3),
    "front_end_ms": Range(0.0, 6e4),
    "front_end_token_us": Range(0.0, 6e4),
    "all_reduce_0mib_us": _ADDED_US,
    "all_reduce_1mib_us": _ADDED_US,
    "all_reduce_16mib_us": _ADDED_US,
    "step_s": _LINEAR_S,
    "prefill_step_s": _LINEAR_S,
    "context_token_s": _LINEAR_S,
    "prompt_token_s": _LINEAR_S,
    # profiles
    "calls": _COUNT,
    "mean_over_median": Range(0.1, 10.0),
    "eager_step_us": _ADDED_US,
    "synchronous_step_us": _ADDED_US,
    "synchronous_sequence_us": _ADDED_US,
    "num_tokens": _TOKENS,
    "num_sequences": _COUNT,
    "prefill_tokens": _TOKENS_OR_NONE,
    "prefill_context": _TOKENS_OR_NONE,
    "activated_experts": Range(1, 1 << 16, is_whole=True),
    "num_decodes": Range(0, 1 << 20, is_whole=True),
    "decode_context": _TOKENS_OR_NONE,
    "deviation_pct": Range(1, 1_000_000, is_whole=True),
    "num_ranks": Range(2, 1 << 16, is_whole=True),
    "num_bytes": Range(1, 1 << 50, is_whole=True),
    "time_us": _CALL_US,
    "rest_us": _ADDED_US,
    "spread_us": _ADDED_US,
    "gain": Range(0.0, 1e3),
    # measuring, fitting and reporting
    "time_budget_s": Range(1e-3, 1e7),
    "max_context": _TOKENS,
    "repeats": _COUNT,
    "max_evaluations": _COUNT,
    "latency_ms": Range(1e-6, 1e12),
    "cut_s": Range(0.0, 1e9),
}
