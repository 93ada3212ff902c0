"""Times of what the ranks of a model exchange.

vLLM chooses the kernel of an all-reduce by its size: its own, symmetric memory, or NCCL. The database timed what it
chose, in CUDA graphs. On data-centre Blackwell vLLM fuses the all-reduce with the norm behind it, by the kernel of
TensorRT-LLM that FlashInfer brings, up to the sizes of `_FUSED_BYTES` (FI_ALLREDUCE_FUSION_MAX_SIZE_MB in vLLM's
allreduce_rms_fusion.py): its times are TensorRT-LLM's.

The column message_size counts elements of 16 bits, not bytes, as the database's collectors say (collect_all_reduce.py,
collect_nccl.py). As bytes, 8 GPUs of an H100 node would exchange half of what their links carry.
"""

from __future__ import annotations

import pandas as pd

from simulator.importers.aiconfigurator.database import Database
from simulator.importers.aiconfigurator.measured_curve import MeasuredCurve, measured_curve
from simulator.profile.profile import ProfileError

_ELEMENT_BYTES = 2
_MIB = 1 << 20
_FUSED_BYTES = {2: 64 * _MIB, 4: 32 * _MIB, 8: _MIB}


def fuses_norms(database: Database, ranks: int) -> bool:
    """Whether all-reduces do the norms behind them."""
    return ranks in _FUSED_BYTES and 100 <= database.rates["sm_version"] < 110


def all_reduce(database: Database, ranks: int) -> tuple[MeasuredCurve, int]:
    """Time of an all-reduce over its bytes, and the number of outliers; raises ProfileError if it was not measured."""
    rows = _in_bytes(database.rows("comm", "custom_allreduce_perf", backend="vllm_graph", num_gpus=ranks))
    if rows.empty:
        raise ProfileError(f"{database.system} has no all-reduce of {ranks} GPUs")
    if fuses_norms(database, ranks):
        fused = _in_bytes(database.rows("comm", "custom_allreduce_perf", source="trtllm", num_gpus=ranks))
        if len(fused):
            most = _FUSED_BYTES[ranks]
            rows = pd.concat([fused[fused["num_bytes"] <= most], rows[rows["num_bytes"] > most]])
    return measured_curve(rows, "num_bytes")


def all_gather(database: Database, ranks: int) -> MeasuredCurve | None:
    """Time of an all-gather over the bytes that all ranks have after it; None if it was not measured."""
    where = {"op_name": "all_gather", "nccl_dtype": "half", "num_gpus": ranks}
    rows = _in_bytes(database.rows("comm", "nccl_perf", source="nccl", **where))
    return None if rows.empty else measured_curve(rows, "num_bytes")[0]


def _in_bytes(rows: pd.DataFrame) -> pd.DataFrame:
    return rows if rows.empty else rows.assign(num_bytes=_ELEMENT_BYTES * rows["message_size"])
