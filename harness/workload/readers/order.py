"""What must hold between rows: times do not go backwards, and the turns of a session build on each other."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.workload.readers.sieve import RowSieve

_BACKWARDS = "the time is before the previous row's"
_TURN_ORDER = "turn is not after the session's previous turn"
_NOT_CUMULATIVE = "the prompt is shorter than the session's previous prompt and output together"


class OrderCheck:
    """Compares each row with the usable rows before it, over all chunks of one file."""

    def __init__(self) -> None:
        self._last_time: float | int | None = None
        self._sessions: dict[int, tuple[int, int]] = {}  # session -> turn and total tokens of its last usable row

    def check(self, columns: Mapping[str, Any], sieve: RowSieve) -> None:
        """Marks rows of the sieve's chunk. Runs after all other checks, because it compares usable rows only."""
        if "session_id" in columns:
            self._check_sessions(columns, sieve)
        elif "arrival_time" in columns:
            self._check_times(columns["arrival_time"], sieve)

    def _check_times(self, times: Any, sieve: RowSieve) -> None:
        # A row that goes backwards lies below the running maximum, so it does not change that maximum:
        # the maximum over all rows is the maximum over the good ones.
        usable = np.flatnonzero(sieve.usable)
        if not len(usable):
            return
        times = times[usable]
        highest = np.maximum.accumulate(times)
        if self._last_time is not None:
            highest = np.maximum(highest, self._last_time)
        backwards = np.zeros(len(sieve.usable), dtype=bool)
        backwards[usable] = times < highest
        self._last_time = highest[-1]
        sieve.reject(backwards, _BACKWARDS)

    def _check_sessions(self, columns: Mapping[str, Any], sieve: RowSieve) -> None:
        """Row by row, because a row is compared with the usable rows of its session before it."""
        n = len(sieve.usable)
        sessions = columns["session_id"].tolist()
        times = columns["arrival_time"].tolist() if "arrival_time" in columns else [0] * n
        turns = columns["turn"].tolist() if "turn" in columns else None
        prompts = columns["num_prompt_tokens"].tolist()
        totals = (columns["num_prompt_tokens"] + columns["num_output_tokens"]).tolist()
        bad: dict[str, list[int]] = {_BACKWARDS: [], _TURN_ORDER: [], _NOT_CUMULATIVE: []}
        for row in np.flatnonzero(sieve.usable).tolist():
            last_turn, last_total = self._sessions.get(sessions[row], (-1, 0))
            turn = last_turn + 1 if turns is None else turns[row]
            if self._last_time is not None and times[row] < self._last_time:
                bad[_BACKWARDS].append(row)
            elif turn <= last_turn:
                bad[_TURN_ORDER].append(row)
            elif prompts[row] < last_total:
                bad[_NOT_CUMULATIVE].append(row)
            else:
                self._sessions[sessions[row]] = (turn, totals[row])
                self._last_time = times[row]
        for reason, rows in bad.items():
            mask = np.zeros(n, dtype=bool)
            mask[rows] = True
            sieve.reject(mask, reason)
