"""Times of what the ranks of a model exchange.

All-reduces run in CUDA graphs by vLLM's own kernel up to 8 MiB, and by NCCL above. On data-centre Blackwell vLLM fuses
the all-reduce with the norm behind it, by the kernel of TensorRT-LLM that FlashInfer brings, up to the sizes of
`_FUSED_BYTES` (FI_ALLREDUCE_FUSION_MAX_SIZE_MB in vLLM's allreduce_rms_fusion.py): its times are TensorRT-LLM's.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from simulator.importers.aiconfigurator.database import Database
from simulator.importers.aiconfigurator.measured_curve import MeasuredCurve, measured_curve
from simulator.profile.profile import ProfileError

_MIB = 1 << 20
_CUSTOM_BYTES = 8 * _MIB
_FUSED_BYTES = {2: 64 * _MIB, 4: 32 * _MIB, 8: _MIB}


def fuses_norms(database: Database, ranks: int) -> bool:
    """Whether all-reduces do the norms behind them."""
    return ranks in _FUSED_BYTES and 100 <= database.rates["sm_version"] < 110


def all_reduce(database: Database, ranks: int) -> tuple[MeasuredCurve, int]:
    """Time of an all-reduce over its bytes, and the number of outliers; raises ProfileError if it was not measured."""
    where: dict[str, Any] = {"num_gpus": ranks}
    rows = database.rows("comm", "custom_allreduce_perf", backend="vllm_graph", **where)
    if rows.empty:
        raise ProfileError(f"{database.system} has no all-reduce of {ranks} GPUs")
    large = database.rows("comm", "nccl_perf", source="nccl", op_name="all_reduce", nccl_dtype="half", **where)
    if len(large):
        rows = pd.concat([_up_to(rows, _CUSTOM_BYTES), _above(large, _CUSTOM_BYTES)])
    if fuses_norms(database, ranks):
        fused = database.rows("comm", "custom_allreduce_perf", source="trtllm", **where)
        if len(fused):
            rows = pd.concat([_up_to(fused, _FUSED_BYTES[ranks]), _above(rows, _FUSED_BYTES[ranks])])
    return measured_curve(rows, "message_size")


def all_gather(database: Database, ranks: int) -> MeasuredCurve | None:
    """Time of an all-gather over the 16-bit elements of one rank; None if it was not measured."""
    rows = database.rows("comm", "nccl_perf", source="nccl", op_name="all_gather", nccl_dtype="half", num_gpus=ranks)
    return None if rows.empty else measured_curve(rows, "message_size")[0]


def _up_to(rows: pd.DataFrame, num_bytes: int) -> pd.DataFrame:
    return rows[rows["message_size"] <= num_bytes]


def _above(rows: pd.DataFrame, num_bytes: int) -> pd.DataFrame:
    return rows[rows["message_size"] > num_bytes]
