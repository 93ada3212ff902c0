"""Times of a mixture of experts: measured for the model, or taken over from another model of the same kernel.

The database times what vLLM runs by default. A server may be told to run another kernel, such as Marlin's for the
MXFP4 experts of gpt-oss on Hopper (VLLM_MXFP4_USE_MARLIN=1), which was timed for other models only. The name of the
database then ends in the kernel, as in `h100_sxm+marlin`. FlashInfer's kernel for MXFP4 weights and 8-bit activations
was timed for gpt-oss itself, with SGLang, which calls the same one; vLLM 0.15 pads its input and slices its output by
two more kernels (pull request 30647). Triton's for MXFP4 on Hopper, which TensorRT-LLM calls too, was timed with vLLM.
Marlin's was timed for other models, and the times of one of them stand in:

- A step in which each expert gets as many tokens reads and multiplies the same share of the weights. So
  T(tokens) of this model is taken from the step of the other one with as many tokens per expert,
  and grows with the weights of all experts of a rank.
- Sorting tokens and launches do not grow with the weights: the shortest time of the kernel, one token on 32 GPUs,
  stays as it is.
- Experts are padded as vLLM does (mxfp4_round_up_hidden_size_and_intermediate_size in its fused_moe/oracle/mxfp4.py).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from simulator.importers.aiconfigurator.database import Database
from simulator.importers.aiconfigurator.measured_curve import MeasuredCurve, measured_curve
from simulator.models.experts import Experts
from simulator.models.model import Model
from simulator.profile.profile import ProfileError

OPEN_TRITON = "triton"
_FEW_TOKENS = 128  # up to which aiconfigurator takes TensorRT-LLM's kernel for few
_BLOCK = 128  # rows and columns that share a scale in block-scaled FP8
DISTRIBUTION = "power_law_1.2"  # of tokens over experts: the skew that aiconfigurator assumes
_DTYPES = {
    "none": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_block", "int4": "int4_wo", "int4_32": "int4_wo",
    "nvfp4": "nvfp4", "mxfp4": "w4a16_mxfp4",
}  # fmt: skip


class ExpertKernel(NamedTuple):
    """A kernel, and the model that it was timed for.

    Attributes:
        quantization: format of the experts that it serves.
        source: whose engine it was timed in; None is the backend's.
        dtype: of the rows, as the database calls it.
        hidden_size, intermediate_size, num_experts_per_token, num_experts: of the model that was timed.
        hidden_multiple, intermediate_multiple: to which vLLM pads the sizes of a rank.
        num_copies: kernels beside it that copy padded inputs or outputs.
    """

    quantization: str
    source: str | None
    dtype: str
    hidden_size: int
    intermediate_size: int
    num_experts_per_token: int
    num_experts: int
    hidden_multiple: int
    intermediate_multiple: int
    num_copies: int


# Of the models that Marlin's was timed for, the one whose number of experts is nearest to the 128 of gpt-oss-120b.
# Marlin multiplies 16-bit inputs by 4-bit weights, whose element type only changes how they are unpacked.
KERNELS = {
    "marlin": ExpertKernel("mxfp4", None, "int4_wo", 7168, 2048, 8, 384, 256, 128, 0),
    "mxfp4_mxfp8": ExpertKernel("mxfp4", "sglang", "w4a8_mxfp4_mxfp8", 2880, 2880, 4, 128, 256, 256, 2),
    OPEN_TRITON: ExpertKernel("mxfp4", "vllm", "w4a16_mxfp4", 2880, 2880, 4, 128, 256, 256, 0),
}


# Kernels of block-scaled FP8 that were timed for the sizes of each model, but not by the newest vLLM: where, the
# versions of the tables, and on which systems.
# Triton's were timed without the kernel that chooses experts. vLLM runs others on Blackwell, unless it is told not to
# (VLLM_USE_FLASHINFER_MOE_FP8=0).
# FlashInfer's CUTLASS on Hopper is TensorRT-LLM's runner of a mixture of experts, whose tables stand in for it.
# TensorRT-LLM's own kernel on Blackwell (moe_config.backend TRTLLM) was timed with vLLM, which calls it by FlashInfer.
TRITON, CUTLASS, TRTLLM_GEN = "triton_experts", "flashinfer_cutlass", "trtllm_gen"
_TIMED: dict[str, tuple[str | None, str, tuple[str, ...]]] = {
    TRITON: (None, "0.19.0", ("b200_sxm",)),
    CUTLASS: ("trtllm", "1.3.0rc20", ("h100_sxm", "h200_sxm")),
    TRTLLM_GEN: ("vllm", "0.24.0", ("b200_sxm",)),
}
_NOWHERE = (None, "", ())


def experts(database: Database, model: Model, ranks: int, kernel: str = "") -> tuple[MeasuredCurve, int]:
    """Time of a layer's experts over tokens, and the number of outliers. Where blocks of FP8 cannot be split among so
    many ranks, which vLLM refuses, that of whole experts.

    Args:
        kernel: one of KERNELS; "" is the kernel that vLLM chooses.

    Raises:
        ProfileError: the database has no such times, or there is no such kernel.
    """
    if kernel and kernel not in _TIMED:
        return _taken_over(database, model, ranks, kernel)
    dtype, block = dtype_of(model), model.first(Experts)
    if block is None:
        raise ProfileError(f"{model.name} has no experts")
    asked = database, dtype, _shape(model, block)
    rows = _rows(*asked, **_where(database, dtype, kernel), moe_tp_size=ranks)
    if rows.empty and not kernel and dtype == "fp8_block" and block.intermediate_size // ranks % _BLOCK:
        rows = _rows(*asked, moe_tp_size=1, moe_ep_size=ranks)
    if rows.empty:
        raise ProfileError(
            f"{database.system}/{database.version} has no experts in {dtype} of "
            f"hidden_size={model.hidden_size}, moe_intermediate_size={block.intermediate_size}, "
            f"{block.num_used} of {block.num_experts}, on {ranks} GPUs"
        )
    return measured_curve(rows, "num_tokens")


def dtype_of(model: Model) -> str:
    """The format of the model's experts, as the database calls it; raises ProfileError if it has none in it."""
    name = model.format_of("experts").name
    if name not in _DTYPES:
        raise ProfileError(f"the database has no experts in {name} (there: {', '.join(_DTYPES)})")
    return _DTYPES[name]


def whole_experts(database: Database, model: Model, kernel: str = "") -> pd.DataFrame | None:
    """Time of a layer's experts where ranks share out whole ones, by ranks and the tokens of all of them; None if the
    database has no such times."""
    name, block = model.format_of("experts").name, model.first(Experts)
    if name not in _DTYPES or block is None:
        return None
    parts = []
    for ranks in (2, 4, 8, 16, 32):
        where = _where(database, name, kernel)
        rows = _rows(database, _DTYPES[name], _shape(model, block), **where, moe_tp_size=1, moe_ep_size=ranks)
        if len(rows):
            thin = measured_curve(rows, "num_tokens")[0].thinned()
            parts.append(pd.DataFrame({"num_ranks": ranks, "num_tokens": thin.sizes, "time_us": thin.times_us}))
    return pd.concat(parts, ignore_index=True) if parts else None


def timed_kernels(system: str) -> list[str]:
    """The kernels of block-scaled FP8 of vLLM that older tables or those of other engines have on a system."""
    return [name for name, (_, _, systems) in _TIMED.items() if system in systems and name != TRTLLM_GEN]


def _where(database: Database, quantization: str, kernel: str) -> dict[str, Any]:
    """The tables that time a kernel; those of the database where it is vLLM's own choice."""
    if not kernel:
        return {}
    if quantization != "fp8_block" or database.system not in _TIMED.get(kernel, _NOWHERE)[2]:
        raise ProfileError(f"{database.system} has no times of {kernel} in {quantization}")
    source, version, _ = _TIMED[kernel]
    return {"source": source, "version": version}


def _shape(model: Model, block: Experts) -> tuple[int, ...]:
    return model.hidden_size, block.intermediate_size, block.num_used, block.num_experts


def _taken_over(database: Database, model: Model, ranks: int, name: str) -> tuple[MeasuredCurve, int]:
    """The times of a kernel of KERNELS at the sizes of `model`."""
    kernel, block = KERNELS.get(name), model.first(Experts)
    if kernel is None or kernel.quantization != model.quantization.name or block is None:
        known = ", ".join(f"{each} for {KERNELS[each].quantization}" for each in KERNELS)
        raise ProfileError(f"no expert kernel {name!r} for {model.name} in {model.quantization.name} (there: {known})")
    shape = (kernel.hidden_size, kernel.intermediate_size, kernel.num_experts_per_token, kernel.num_experts)
    rows = _rows(database, kernel.dtype, shape, source=kernel.source)
    of_ranks = rows[rows["moe_tp_size"] == ranks] if len(rows) else rows
    if of_ranks.empty:
        raise ProfileError(f"{database.system}/{database.version} has no experts in {kernel.dtype} on {ranks} GPUs")
    timed, num_dropped = measured_curve(of_ranks, "num_tokens")
    fixed_us = float(rows["time_us"].min())
    weights = block.num_experts * _weights(kernel, model.hidden_size, block.intermediate_size // ranks)
    weights_timed = kernel.num_experts * _weights(kernel, kernel.hidden_size, kernel.intermediate_size // ranks)
    share = block.num_used / block.num_experts
    share_timed = kernel.num_experts_per_token / kernel.num_experts
    return stretched(timed, fixed_us, weights / weights_timed, share / share_timed), num_dropped


def stretched(timed: MeasuredCurve, fixed_us: float, weights: float, share: float) -> MeasuredCurve:
    """Times over tokens of experts with `weights` times the weights of those that were timed, and of which a token uses
    `share` times the share; `fixed_us` of each time does not grow."""
    times = fixed_us + np.maximum(timed.times_us - fixed_us, 0.0) * weights
    return MeasuredCurve(timed.sizes, MeasuredCurve(timed.sizes / share, times).at(timed.sizes))


def copying_work(model: Model, kernel: str, *, pads_input: bool) -> tuple[int, int]:
    """Kernels of a layer that copy padded inputs or outputs of its experts, and bytes per token that they move. Without
    `pads_input`, as in TensorRT-LLM, the input is padded as it is quantised."""
    copies = KERNELS[kernel].num_copies if kernel in KERNELS else 0
    if not copies:
        return 0, 0
    copies -= not pads_input
    padded = _padded(model.hidden_size, KERNELS[kernel].hidden_multiple)
    return copies, copies * (model.hidden_size + padded) * model.dtype_bytes


def _weights(kernel: ExpertKernel, hidden: int, width: int) -> int:
    """Weights of one product of an expert, padded."""
    return _padded(hidden, kernel.hidden_multiple) * _padded(width, kernel.intermediate_multiple)


def _rows(database: Database, dtype: str, shape: tuple[int, ...], **where: Any) -> pd.DataFrame:
    where.setdefault("moe_ep_size", 1)
    where |= dict(zip(("hidden_size", "inter_size", "topk", "num_experts"), shape, strict=True))
    rows = database.rows("moe", "moe_perf", moe_dtype=dtype, distribution=DISTRIBUTION, **where)
    if "kernel_source" not in rows.columns:
        return rows
    # TensorRT-LLM's experts in NVFP4 were timed twice: by a kernel for few tokens, and by CUTLASS's.
    of_few = rows["kernel_source"].astype(str).str.endswith("min_latency")
    return rows[of_few == (rows["num_tokens"] <= _FEW_TOKENS)] if of_few.any() else rows


def _padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
