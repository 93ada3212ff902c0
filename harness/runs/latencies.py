"""Times of requests in seconds, and the latencies between them, from the whole nanoseconds that a recorder keeps."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

UNSET = -1  # a time that was never reached
NS = 1e-9


def seconds(times_ns: NDArray[np.int64]) -> NDArray[np.float64]:
    """Seconds, NaN where the time was never reached."""
    return np.where(times_ns == UNSET, np.nan, times_ns * NS)


def with_latencies(table: pd.DataFrame, recorded: pd.DataFrame) -> pd.DataFrame:
    """Add TTFT, TPOT, E2EL and queue time in s; differences are taken in whole ns."""
    times = {
        name: recorded[f"{name}_ns"].to_numpy() for name in ("arrival", "first_scheduled", "first_token", "finish")
    }

    def between(start: str, end: str) -> NDArray[np.float64]:
        reached = (times[start] != UNSET) & (times[end] != UNSET)
        return np.where(reached, (times[end] - times[start]) * NS, np.nan)

    more = table["num_output_tokens"].to_numpy() / table["num_sequences"].to_numpy() - 1
    table["ttft"] = between("arrival", "first_token")
    table["tpot"] = np.where(more > 0, between("first_token", "finish") / np.where(more > 0, more, 1), np.nan)
    table["e2el"] = between("arrival", "finish")
    table["queue_time"] = between("arrival", "first_scheduled")
    return table
