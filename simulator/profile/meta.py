"""What a profile was measured on, and how its tables are to be read (`simulator.profile.profile`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from simulator.quantities import RANGES


def _ascending(sizes: tuple[int, ...]) -> tuple[int, ...]:
    if any(low >= high for low, high in pairwise(sizes)):
        raise ValueError("must be ascending")
    return sizes


def _within(quantity: str) -> Any:
    limits = RANGES[quantity]
    return Field(ge=limits.low, le=limits.high, strict=limits.is_whole, allow_inf_nan=False)


Layers = Annotated[int, _within("num_layers")]
Ranks = Annotated[int, _within("tensor_parallel_size")]
Calls = Annotated[int, _within("calls")]
BlockSize = Annotated[int, _within("block_size")]
NumTokens = Annotated[int, _within("num_tokens")]


@dataclass(frozen=True)
class ProfileMeta:
    """What a profile was measured on, and how its tables are to be read.

    Attributes:
        device, model: names, as the tools that measured report them.
        tensor_parallel_size: ranks that shared the model.
        num_layers: layers of the model, each with one attention call.
        calls: calls per step of every operator in the tables of tokens and sequences.
        shape: the model's sizes, where known; a profile serves every model of this shape.
        token_buckets: a step is padded to the next of these numbers of tokens (CUDA graphs); empty without padding.
        padded_steps: which steps are padded to `token_buckets`.
        prompt_buckets: a step with prompts is padded to the next of these, where only decodes are padded to
            `token_buckets` (CUDA graphs of all but attention and sampling); empty without padding.
        padded_heads: whether the operators of the sequences table are padded to the same bucket.
        batched_prefill: one attention call serves all chunks of a step, so that its fixed cost counts once.
        round_up_tokens: an operator that computes in tiles takes the time of the next measured number of tokens; it is
            not interpolated.
        mean_over_median: mean time of whole decode steps, as a multiple of their median.
        eager_step_us: least time of a step that no CUDA graph serves: the host launches its kernels one by one, and the
            GPU waits for the host if its kernels are shorter.
        synchronous_step_us, synchronous_sequence_us: what a step, and each sequence that decodes in it, adds where the
            host plans a step after the one before it (no asynchronous scheduling); 0 where steps were timed that way.
        planned_ahead: whether whole steps were timed with the next one planned and launched meanwhile; otherwise a
            step was planned after the one before it.
        source: how it was measured: command, date, software, repeats.
    """

    device: str
    model: str
    tensor_parallel_size: Ranks
    num_layers: Layers
    calls: dict[str, Calls]
    dtype: str = "bfloat16"
    block_size: BlockSize | None = None
    shape: dict[str, Any] = field(default_factory=dict)
    token_buckets: Annotated[tuple[NumTokens, ...], AfterValidator(_ascending)] = ()
    padded_steps: Literal["decode", "all"] = "decode"
    prompt_buckets: Annotated[tuple[NumTokens, ...], AfterValidator(_ascending)] = ()
    padded_heads: bool = False
    batched_prefill: bool = True
    round_up_tokens: bool = False
    mean_over_median: Annotated[float, _within("mean_over_median")] = 1.0
    eager_step_us: Annotated[float, _within("eager_step_us")] = 0.0
    synchronous_step_us: Annotated[float, _within("synchronous_step_us")] = 0.0
    synchronous_sequence_us: Annotated[float, _within("synchronous_sequence_us")] = 0.0
    planned_ahead: bool = False
    source: dict[str, Any] = field(default_factory=dict)
