"""Public measurements that cannot be right, by what the device can do and by each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

_SLOWER = 1.1  # fewer clients cannot have a TPOT this much longer


def contradicted(table: pd.DataFrame) -> list[str]:
    """Why the measurement of each row cannot be right, "" where it can.

    A server cannot compute faster than the device's large matrix products, nor read its weights and KV cache faster
    than its memory; and a token of fewer clients cannot take longer than one of more clients. Where clients wait longer
    than their answers take, and TPOT is as with a quarter of them, the server had fewer seats than the row says.
    """
    too_fast = (table["implied_share_of_flops"] > 1) | (table["implied_share_of_bandwidth"] > 1)
    waiting = table["ttft_ms"] > table["tpot_ms"] * table["osl"]
    reasons = []
    rows: Iterable[Any] = table.itertuples(index=False)
    for place, row in enumerate(rows):
        same = (
            (table["isl"] == row.isl)
            & (table["osl"] == row.osl)
            & (table["tensor_parallel_size"] == row.tensor_parallel_size)
            & (table["expert_parallel"] == row.expert_parallel)
        )
        far_fewer = table["tpot_ms"][same & (table["concurrency"] <= row.concurrency / 4)]
        more = table["tpot_ms"][same & ~waiting & (table["concurrency"] > row.concurrency)]
        reason = ""
        if too_fast.iloc[place]:
            reason = "faster than the device's arithmetic or memory"
        elif waiting.iloc[place] and (_SLOWER * far_fewer > row.tpot_ms).any():
            reason = "the server ran fewer requests at a time than there were clients"
        elif (row.tpot_ms > _SLOWER * more).any():
            reason = "a run with more clients of the same server has a shorter TPOT"
        reasons.append(reason)
    return reasons
