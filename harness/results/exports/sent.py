"""Requests as their client sent them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.results.columns import floats
from harness.results.tables import RunResult


@dataclass(frozen=True)
class Sent:
    """A request that was sent.

    Attributes:
        number: its row.
        session, turn: None where the trace has none.
        due_s, start_s: when it was meant to be sent, and was, in s since 1970.
        end_s: when its answer ended; of a request that failed when it was sent.
        ttft_s, itls: s from `start_s` to the first token, NaN without one; gaps between tokens, None where only the
            pooled ones are known.
        error: None for a request that finished.
    """

    number: int
    session: int | None
    turn: int | None
    due_s: float
    start_s: float
    end_s: float
    ttft_s: float
    itls: Sequence[float] | None
    num_prompt_tokens: int
    num_output_tokens: int
    error: str | None

    @property
    def latency_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def itl_s(self) -> float | None:
        """The mean gap between tokens; None where there is none."""
        gaps = self.num_output_tokens - 1
        return (self.latency_s - self.ttft_s) / gaps if gaps > 0 else None

    @property
    def token_times_s(self) -> list[float]:
        """Of all tokens; of the first and the last one where no more is known."""
        first = self.start_s + self.ttft_s
        if self.itls is not None:
            return [first, *(first + np.cumsum(self.itls)).tolist()]
        return [first, self.end_s] if self.num_output_tokens > 1 else [first]


def sent_requests(result: RunResult, started_s: float) -> list[Sent]:
    """The requests that were sent, in the order of the table; `started_s` is when the run started, since 1970."""
    table = result.requests
    due = started_s + floats(table, "arrival_time")
    lag = np.nan_to_num(floats(table, "replay_lag"))
    ttft, finish = floats(table, "ttft") - lag, started_s + floats(table, "finish_time")
    found = []
    for number, row in enumerate(table.to_dict("records")):
        if math.isnan(due[number]):
            continue
        is_done = row["status"] == "finished"
        start = due[number] + lag[number]
        reason = row["error"] if isinstance(row["error"], str) else str(row["status"])
        found.append(
            Sent(
                number, _whole(row.get("session_id")), _whole(row.get("turn")),
                float(due[number]), float(start), float(finish[number] if is_done else start), float(ttft[number]),
                result.itls[number] if result.itls is not None else None,
                int(row["num_prompt_tokens"]), int(row["num_output_tokens"]), None if is_done else reason,
            )
        )  # fmt: skip
    return found


def _whole(value: Any) -> int | None:
    return None if value is None or value != value else int(value)
