"""Times of a mixture of experts by DeepGEMM's contiguous grouped product, as vLLM 0.12 ran it on Hopper.

    rows(m) = m tokens · experts per token + experts · 127, rounded up to 128

Each expert's tokens are padded to 128 rows. The host does not know how many tokens an expert gets, so the product has
as many rows as any routing could need, and multiplies all of them: rows without a token are of expert 0
(`compute_aligned_M` and `maybe_has_empty_blocks` in vLLM's fused_moe/deep_gemm_utils.py). A decode step of one token
multiplies 16,384 rows of 128 experts. vLLM takes this product for block-scaled FP8 with fewer than 128 tokens too since
scales are powers of two by default (pull request 26197, of October 2025), but not on 8 GPUs (29346), where a part of an
expert is narrower than 512. Ranks that share out whole experts have as many rows for all tokens, and 127 for each
expert of their own.

A block of 128 rows takes as long as its arithmetic or, where it is the first of an expert, as its weights take to read,
whichever is longer: 128 rows of an expert are 256 operations for each byte of its weights, near what a Hopper GPU does
in the time of reading one. The blocks beyond are of experts whose weights the caches have. How many experts get tokens
is what independent choices would make it. On H200, SGLang's tables (wideep_context_moe_perf 0.5.6: DeepSeek's experts
by the same product, fewer tokens than one block for each) have 740 to 870 us for 64 experts more; this rule 860.

What a row's arithmetic takes for each output, and what it takes to quantise a row, are read off the largest measured
block-scaled products: their times are linear in the outputs, and what is left without any is the quantisation, which
moves 1.3 TB/s on H200. As the products were timed with weights of little power, the arithmetic takes `SUSTAINED` times
as long. The activation writes and reads all rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simulator.importers.aiconfigurator.gemms import Gemms
from simulator.importers.aiconfigurator.measured_curve import Floats, MeasuredCurve
from simulator.importers.aiconfigurator.rules import SUSTAINED, memory_rule
from simulator.models.experts import Experts
from simulator.models.model import Model
from simulator.profile.profile import ProfileError

NAME = "deepgemm"
_BLOCK = 128
_FP8_BYTES = 1
# Two products; quantisation of their inputs; counts, zeros and two of the scatter; scales in the other order (by
# transform_sf_into_required_layout of DeepGEMM); activation, gather.
_KERNELS = 11
_SIZES = np.array([2.0**power for power in range(16)])


def padded_experts(
    gemms: Gemms, model: Model, ranks: int, rates: Mapping[str, float], expert_ranks: int = 1
) -> MeasuredCurve:
    """Time of a layer's experts over tokens; raises ProfileError if `model` has no experts in block-scaled FP8.

    Args:
        expert_ranks: that share out whole experts; with 1, each of `ranks` has a part of every expert.
    """
    block = model.first(Experts)
    if block is None or model.quantization.name != "fp8_block":
        raise ProfileError(f"{NAME}: {model.name} in {model.quantization.name} has no experts in fp8_block")
    width = block.intermediate_size // (ranks if expert_ranks == 1 else 1)
    hidden, rule, number = model.hidden_size, memory_rule(rates), block.num_experts // expert_ranks
    into, out_of = gemms.row_us("fp8_block", hidden), gemms.row_us("fp8_block", width)
    products = ((into, 2 * width, hidden), (out_of, hidden, width))
    block_us = [SUSTAINED * _BLOCK * each.output_us * n for each, n, _ in products]
    moved = [_FP8_BYTES * (n + _BLOCK) * k + model.dtype_bytes * _BLOCK * n for _, n, k in products]
    first_us = sum(max(each, rule.us_per_byte * size) for each, size in zip(block_us, moved, strict=True))
    rows = _SIZES * block.num_used + number * (_BLOCK - 1)
    blocks = np.ceil(rows / _BLOCK)
    with_tokens = number * (1 - (1 - block.num_used / block.num_experts) ** _SIZES)
    row_us = out_of.fixed_us + 3 * width * model.dtype_bytes * rule.us_per_byte
    used = block.num_used / expert_ranks
    copied = used * (_FP8_BYTES + model.dtype_bytes) + _FP8_BYTES + model.dtype_bytes  # by the scatter and the gather
    token_us = into.fixed_us + copied * hidden * rule.us_per_byte
    times: Floats = _KERNELS * rule.fixed_us + blocks * (sum(block_us) + _BLOCK * row_us) + _SIZES * token_us
    times += with_tokens * (first_us - sum(block_us))
    return MeasuredCurve(_SIZES, times)
