"""Profiles of weights that are stored in few bits and multiplied in 16, from those of weights in 16 bits.

vLLM's Marlin kernels read such weights and widen them as they go (int4 on every GPU; fp8 where a GPU has no arithmetic
of 8 bits). Databases of operator times hardly have them. A product of few tokens waits for its weights, of which fewer
bytes are read; one of many tokens waits for arithmetic, which takes longer than with weights that need no widening:

    time(tokens) = max(share of the bytes · time(1), WIDENING · time(most tokens) · tokens / most tokens)

Experts read more weights the more of them get tokens: their products take at least share of the bytes · time(tokens).

`WIDENING` is fitted to two public runs of Qwen3-14B on an A100 (FP8 and AWQ, gpustack/gpustack,
docs/performance-lab/qwen3-14b/a100.md); those of Qwen3-32B score it (`python -m experiments.board`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.models.model import Model
from simulator.models.weight_formats import NONE
from simulator.profile.profile import Profile
from simulator.table import groups, stacked

_EXPERTS = "experts"
WIDENING = {4: 1.2, 8: 1.4}  # by the bits of a weight


def is_widened(model: Model, flops: dict[str, float]) -> bool:
    """Whether all products with a model's weights are in its own dtype, though these take fewer bits."""
    stored = model.quantization
    return stored.weight_bits is not None and stored.arithmetic not in flops and stored.is_weight_only_elsewhere


def widened(profile: Profile, model: Model, tensor_parallel_size: int) -> Profile:
    """`profile`, of weights in 16 bits, for the weights of `model`."""
    matrices = {each.name: (each.rows, each.columns) for _, each in model.matrices(tensor_parallel_size)}
    parts = []
    for operator, rows in groups(profile.rows["tokens"], "operator"):
        if operator in matrices:
            matrix, formats = matrices[str(operator)], (model.quantization, NONE)
            sizes = [each.matrix_bytes(*matrix, model.dtype_bytes) for each in formats]
            times_us, num_tokens = rows["time_us"].to_numpy(), rows["num_tokens"].to_numpy()
            token_us = WIDENING[model.quantization.weight_bits or 8] * times_us[-1] / num_tokens[-1]
            read = times_us if operator == _EXPERTS else times_us[0]
            rows = rows.assign(time_us=np.maximum(token_us * num_tokens, sizes[0] / sizes[1] * read))
        parts.append(rows)
    source = {**profile.meta.source, "quantization": model.quantization.name}
    tables = {**profile.rows, "tokens": stacked(parts)}
    return Profile(replace(profile.meta, source=source), tables)
