"""Times of a mixture of experts by DeepGEMM's contiguous grouped product, as vLLM 0.12 ran it on Hopper.

    rows(m) = m tokens · experts per token + experts · 127, rounded up to 128

Each expert's tokens are padded to 128 rows. The host does not know how many tokens an expert gets, so the product has
as many rows as any routing could need, and multiplies all of them: rows without a token are of expert 0
(`compute_aligned_M` and `maybe_has_empty_blocks` in vLLM's fused_moe/deep_gemm_utils.py). A decode step of one token
multiplies 16,384 rows of 128 experts. vLLM takes this product for block-scaled FP8 with fewer than 128 tokens too since
scales are powers of two by default (pull request 26197, of October 2025), but not on 8 GPUs (29346), where a part of an
expert is narrower than 512. Ranks that share out whole experts have as many rows for all tokens, and 127 for each
expert of their own.

So many rows are bound by arithmetic: each takes what a row of the largest measured block-scaled product of the same
sizes takes. The database's products contain the quantisation of their inputs. Before the first product vLLM quantises
tokens, not rows: the bytes of that are taken off by the rule of kernels that move bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simulator.importers.aiconfigurator.gemms import Gemms
from simulator.importers.aiconfigurator.measured_curve import MeasuredCurve
from simulator.importers.aiconfigurator.rules import memory_rule
from simulator.models.experts import Experts
from simulator.models.model import Model
from simulator.profile.profile import ProfileError

NAME = "deepgemm"
_BLOCK = 128
_FP8_BYTES = 1
_KERNELS = 6  # quantisation, counts, two of the scatter, activation, gather
_SIZES = (1.0, 32768.0)  # times are linear in tokens


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
    hidden, rule, used = model.hidden_size, memory_rule(rates), block.num_used / expert_ranks
    quantised = (model.dtype_bytes + _FP8_BYTES) * hidden
    row_us = gemms.row_us("fp8_block", 2 * width, hidden) + gemms.row_us("fp8_block", hidden, width)
    row_us += (3 * width * model.dtype_bytes - quantised) * rule.us_per_byte
    scattered = used * hidden * (2 * _FP8_BYTES + model.dtype_bytes)
    token_us = (quantised + scattered + model.dtype_bytes * hidden) * rule.us_per_byte
    sizes = np.array(_SIZES)
    rows = sizes * block.num_used + block.num_experts // expert_ranks * (_BLOCK - 1)
    times = _KERNELS * rule.fixed_us + np.ceil(rows / _BLOCK) * _BLOCK * row_us + sizes * token_us
    return MeasuredCurve(sizes, times)
