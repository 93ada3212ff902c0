"""Times of DeepEP's kernels, by which ranks that share out experts can send each other their tokens.

vLLM runs them with `--all2all-backend deepep_high_throughput` or `deepep_low_latency`. The database timed both with
vLLM on all GPUs of one node, by tokens of each rank, for the sizes of some models: a dispatch before the experts and a
combine behind them. Its column `latency` is in us there, not in ms as elsewhere. The kernels of low latency take at
most 256 tokens of a rank; more go in several turns (VLLM_MOE_DP_CHUNK_SIZE).
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from simulator.importers.aiconfigurator.database import Database
from simulator.importers.aiconfigurator.measured_curve import MeasuredCurve, measured_curve
from simulator.models.experts import Experts
from simulator.models.model import Model

HIGH_THROUGHPUT, LOW_LATENCY = "deepep_high_throughput", "deepep_low_latency"
_NAMES = {HIGH_THROUGHPUT: "deepep_ht", LOW_LATENCY: "deepep_ll"}
_TURNS = (2, 4, 8, 16, 32, 64)


def deep_ep_exchange(database: Database, model: Model, backend: str) -> pd.DataFrame | None:
    """A dispatch and a combine, one after the other, by ranks and the bytes of all of them, as `exchanges` has it; None
    if they were not timed for experts like the model's on so many ranks."""
    block, ranks = model.first(Experts), model.num_expert_ranks
    if block is None:
        return None
    where = {
        "comm_backend": _NAMES[backend], "hidden_size": model.hidden_size, "topk": block.num_used,
        "num_experts": block.num_experts, "ep_size": ranks,
    }  # fmt: skip
    dispatch, combine = (_curve(database, where | {"phase": phase}) for phase in ("dispatch", "combine"))
    if dispatch is None or combine is None:
        return None
    times = dispatch.times_us + combine.at(dispatch.sizes)
    table = pd.DataFrame({"num_tokens": dispatch.sizes, "time_us": times})
    if backend == LOW_LATENCY:
        turns = [table.iloc[-1:] * number for number in _TURNS]
        table = pd.concat([table, *turns], ignore_index=True)
    num_bytes = ranks * table["num_tokens"] * model.hidden_size * model.dtype_bytes
    return pd.DataFrame({"num_ranks": ranks, "num_bytes": num_bytes, "time_us": table["time_us"]})


def _curve(database: Database, where: dict[str, Any]) -> MeasuredCurve | None:
    rows = database.rows("comm", "moe_a2a_perf", **where)
    return None if rows.empty else measured_curve(rows.assign(time_us=rows["latency"]), "num_tokens")[0]
