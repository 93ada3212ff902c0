"""Times of what the ranks of a model exchange.

vLLM chooses the kernel of an all-reduce by its size: its own, symmetric memory, or NCCL. The database timed what it
chose, in CUDA graphs. On Hopper and data-centre Blackwell vLLM fuses the all-reduce with the norm behind it
(enable_allreduce_rms_fusion in its config/vllm.py), by the kernel of TensorRT-LLM that FlashInfer brings, up to the
sizes of `_FUSED_MIB` (FI_ALLREDUCE_FUSION_MAX_SIZE_MB in its allreduce_rms_fusion.py; 0.5 of 8 Hopper GPUs in issue
44079): its times are TensorRT-LLM's. Old servers do not fuse unless they are told to: vLLM 0.10 does not.

TensorRT-LLM's all-reduces were timed without a norm (AllReduceFusionOp.NONE in collect_all_reduce.py), so a fused norm
keeps its own time. On 8 B200 fusing took 13.5 to 8.7 us (SGLang's pull request 7621); the all-reduce alone is 5 to 6.
On two H100 32 tokens take 10 us both ways, 64 fused 16 instead of 12 (vLLM's pull request 22086).

The column message_size counts elements of 16 bits, not bytes, as the database's collectors say (collect_all_reduce.py,
collect_nccl.py). As bytes, 8 GPUs of an H100 node would exchange half of what their links carry.

Of a GB200 or GB300 NVL72 no more than the 4 GPUs of a tray were timed with vLLM 0.24. All-reduces of 8 and 16 were
timed on GB300 later, and stand in for GB200's, which has the same links; NCCL's collectives of 8 are those of B200,
whose links and switches are of the same generation.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pandas as pd

from simulator.importers.aiconfigurator.database import Database
from simulator.importers.aiconfigurator.measured_curve import MeasuredCurve, measured_curve
from simulator.profile.profile import ProfileError

_ELEMENT_BYTES = 2
_MIB = 1 << 20
_SAME_ALL_REDUCE, _SAME_NCCL = {"gb200": "gb300"}, {"gb200": "b200_sxm", "gb300": "b200_sxm"}
# By 10 times the compute capability, or that rounded down to tens, and number of GPUs.
_FUSED_MIB = {90: {2: 64.0, 4: 2.0, 8: 0.5}, 100: {2: 64.0, 4: 32.0, 8: 1.0}, 103: {2: 64.0, 4: 64.0, 8: 2.0}}


def fused_bytes(database: Database, ranks: int) -> float:
    """Bytes up to which an all-reduce does the norm behind it; 0 where vLLM does not fuse them."""
    capability = int(database.rates["sm_version"])
    sizes = _FUSED_MIB.get(capability) or _FUSED_MIB.get(capability // 10 * 10, {})
    return _MIB * sizes.get(ranks, 0.0)


def all_reduce(database: Database, ranks: int, most_fused: float) -> tuple[MeasuredCurve, int]:
    """Time of an all-reduce over its bytes, and the number of outliers; raises ProfileError if it was not measured.

    Args:
        most_fused: bytes up to which it is fused with a norm.
    """
    where: dict[str, Any] = {"backend": f"{database.backend}_graph", "num_gpus": ranks}
    rows = _in_bytes(database.rows("comm", "custom_allreduce_perf", **where))
    if rows.empty:  # in the version that was asked for
        other = _other(database, _SAME_ALL_REDUCE)
        rows = _in_bytes(other.rows("comm", "custom_allreduce_perf", source=database.backend, **where))
    if rows.empty:
        raise ProfileError(f"{database.system} has no all-reduce of {ranks} GPUs")
    if most_fused:
        fused = _in_bytes(database.rows("comm", "custom_allreduce_perf", source="trtllm", num_gpus=ranks))
        if len(fused):
            rows = pd.concat([fused[fused["num_bytes"] <= most_fused], rows[rows["num_bytes"] > most_fused]])
    return measured_curve(rows, "num_bytes")


def all_gather(database: Database, ranks: int) -> MeasuredCurve | None:
    """Time of an all-gather over the bytes that all ranks have after it; None if it was not measured."""
    return _collective(database, "all_gather", ranks)


def exchanges(database: Database) -> pd.DataFrame | None:
    """An all-gather and a reduce-scatter, one after the other, by ranks and the bytes of all of them; None if they were
    not measured."""
    parts = []
    for ranks in (2, 4, 8):
        gather, scatter = (_collective(database, name, ranks) for name in ("all_gather", "reduce_scatter"))
        if gather is not None and scatter is not None:
            times = gather.times_us + scatter.at(gather.sizes)
            parts.append(pd.DataFrame({"num_ranks": ranks, "num_bytes": gather.sizes, "time_us": times}))
    return pd.concat(parts, ignore_index=True) if parts else None


def _collective(database: Database, name: str, ranks: int) -> MeasuredCurve | None:
    """NCCL's time of a collective over the bytes of all ranks; None if it was not measured."""
    where: dict[str, Any] = {"op_name": name, "nccl_dtype": "half", "num_gpus": ranks}
    rows = _in_bytes(database.rows("comm", "nccl_perf", source="nccl", **where))
    if rows.empty and database.system in _SAME_NCCL:
        rows = _in_bytes(_other(database, _SAME_NCCL).rows("comm", "nccl_perf", source="nccl", **where))
    return None if rows.empty else measured_curve(rows, "num_bytes")[0]


def _other(database: Database, alike: Mapping[str, str]) -> Database:
    """The tables of the system whose links are like those of this one; its own where there are none."""
    if database.system in alike:
        with suppress(ProfileError):
            return database.of_system(alike[database.system])
    return database


def _in_bytes(rows: pd.DataFrame) -> pd.DataFrame:
    return rows if rows.empty else rows.assign(num_bytes=_ELEMENT_BYTES * rows["message_size"])
