"""What each sequence did when, for the trace of a run.

waiting             it arrived and was not admitted yet
parked              it was admitted and waits for KV from the host or the disk
prefill, decode     it runs
preempted           it gave way and waits to be admitted again; its KV has to be computed once more, all or in part
swapped             it gave way, and its KV is on the host
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from engine.core.plan import StepPlan
from engine.core.sequence import Request, Sequence, SequenceStatus
from harness.record.request_times import UNSET, seconds

if TYPE_CHECKING:
    import pandas as pd

STATES = ("waiting", "parked", "prefill", "decode", "preempted", "swapped")
WAITING, PARKED, PREFILL, DECODE, PREEMPTED, SWAPPED = range(len(STATES))
_COLUMNS = ("row", "sequence", "state", "start_ns", "end_ns")


class SpanLog:
    """The spans of the sequences of a run. They follow one another without a gap from arrival to end."""

    def __init__(self) -> None:
        self._changes: dict[Sequence, list[tuple[int, int]]] = {}  # state and since when, of those that have not ended
        self._num_swaps: dict[Sequence, int] = {}  # at the last preemption
        self._ends: dict[Sequence, int] = {}  # when samples ended whose request still runs
        self._forked: dict[Request, None] = {}
        self._rows = array("q")

    def add(self, plan: StepPlan, start_ns: int, first_end_ns: int) -> None:
        """A plan ran, the first step of it from `start_ns` to `first_end_ns`."""
        for sequence in plan.preempted:
            num_swaps = self._num_swaps.get(sequence, 0)
            self._change(sequence, SWAPPED if sequence.num_swaps > num_swaps else PREEMPTED, start_ns)
            self._num_swaps[sequence] = sequence.num_swaps
        for sequence in plan.admitted:
            self._change(sequence, PREFILL, start_ns)
        for sequence in plan.parked:
            self._change(sequence, PARKED, start_ns)
        for sequence in plan.fresh_decodes:
            if sequence in self._changes:  # it is neither padding nor a fork that has not given way yet
                self._change(sequence, DECODE, start_ns)
        for chunk in plan.prefills:
            sequence = chunk.sequence
            self._change(sequence, PREFILL, start_ns)
            if chunk.is_last:
                self._change(sequence, DECODE, first_end_ns)
                if sequence.request.num_sequences > 1:
                    self._forked[sequence.request] = None

    def note_ended(self, now_ns: int) -> None:
        """Notes which samples of forked requests have ended by `now_ns`: those of a request end one by one."""
        for request in self._forked:
            for sequence in request.sequences:
                if sequence.status is SequenceStatus.FINISHED:
                    self._ends.setdefault(sequence, now_ns)

    def close(self, request: Request, end_ns: int | None) -> None:
        """Writes down the spans of a request's sequences. It ended at `end_ns`; None if the run ended before it did."""
        self._forked.pop(request, None)
        for number, sequence in enumerate(request.sequences):
            changes = self._changes.pop(sequence, [])
            self._num_swaps.pop(sequence, None)
            end = self._ends.pop(sequence, end_ns)
            if number == 0:
                if changes and request.first_scheduled_time is not None:  # when it was planned
                    changes[0] = changes[0][0], request.first_scheduled_time
                changes.insert(0, (WAITING, request.arrival_time))
            elif request.first_token_time is not None:
                changes.insert(0, (DECODE, request.first_token_time))
            self._write(request.request_id, number, changes, end)

    def table(self, request_ids: NDArray[np.int64]) -> pd.DataFrame:
        """request_id, sequence (its number in the request), state, start and end in s, NaN where it did not end."""
        import pandas as pd  # imported late, as a run without spans does without it

        width = len(_COLUMNS)
        rows = np.frombuffer(self._rows, dtype=np.int64)
        rows = rows[: len(rows) // width * width].reshape(-1, width)  # an exception can cut the last one short
        table = pd.DataFrame(rows, columns=list(_COLUMNS))
        states = pd.Categorical(np.asarray(STATES)[table["state"].to_numpy()], categories=list(STATES))
        return pd.DataFrame(
            {
                "request_id": request_ids[table["row"].to_numpy()],
                "sequence": table["sequence"],
                "state": states,
                "start": seconds(table["start_ns"].to_numpy()),
                "end": seconds(table["end_ns"].to_numpy()),
            }
        )

    def _change(self, sequence: Sequence, state: int, now_ns: int) -> None:
        changes = self._changes.setdefault(sequence, [])
        if not changes or changes[-1][0] != state or state in (PREEMPTED, SWAPPED):
            changes.append((state, now_ns))

    def _write(self, row: int, number: int, changes: list[tuple[int, int]], end: int | None) -> None:
        """Writes the spans of a sequence; those without length are left out, except waiting and preempted ones."""
        times = [time for _, time in changes]
        for i, (state, start) in enumerate(changes):
            until = times[i + 1] if i + 1 < len(times) else UNSET if end is None else end
            if until != start or state in (WAITING, PREEMPTED, SWAPPED):
                self._rows.extend((row, number, state, start, until))
