"""What the plans of a run copied between device, host and disk, and how long steps and requests waited for it."""

from __future__ import annotations

from array import array
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from engine.core.kv.tiers.tier import DEVICE, DISK
from engine.core.plan import StepPlan
from engine.core.sequence import Sequence
from simulator.table import constant

_COLUMNS = ("plan", "num_blocks_out", "num_blocks_in", "num_blocks_to_disk", "num_blocks_from_disk", "wait_ns")


class TransferLog:
    """One row per plan with transfers, of which most runs have none.

    Attributes:
        parked: sequences that wait for KV, and since when.
        parked_ns: how long those of a request waited, in sum, by request.
    """

    def __init__(self) -> None:
        self.parked: dict[Sequence, int] = {}
        self.parked_ns: dict[int, int] = {}
        self._rows = array("q")

    def add(self, number: int, plan: StepPlan, wait_ns: int) -> None:
        """The transfers of plan `number`, for which its step waits `wait_ns`."""
        moves = Counter([(source, target) for source, _, target, _ in plan.transfers])
        del moves[DEVICE, DEVICE]
        if moves:
            sources, targets = Counter[str](), Counter[str]()
            for (source, target), count in moves.items():
                sources[source] += count
                targets[target] += count
            counts = (sources[DEVICE], targets[DEVICE], targets[DISK], sources[DISK])
            self._rows.extend((number, *counts, wait_ns))

    def note_parked(self, plan: StepPlan, start_ns: int) -> None:
        """A sequence is parked from the plan that admits it to the next in which it takes part."""
        for sequence in (*[chunk.sequence for chunk in plan.prefills], *plan.fresh_decodes):
            if (since := self.parked.pop(sequence, None)) is not None:
                number = sequence.request_id
                self.parked_ns[number] = self.parked_ns.get(number, 0) + start_ns - since
        self.parked.update(dict.fromkeys(plan.parked, start_ns))

    def drop_from(self, num_plans: int) -> None:
        """Remove what is there of plans after the first `num_plans`."""
        width = len(_COLUMNS)
        del self._rows[len(self._rows) // width * width :]
        while self._rows and self._rows[-width] >= num_plans:
            del self._rows[-width:]

    @property
    def rows(self) -> NDArray[np.int64]:
        """The plan, and what was copied for it in blocks, and the wait in ns: int64[n, 6]."""
        return np.frombuffer(self._rows, dtype=np.int64).reshape(-1, len(_COLUMNS))


def transfer_columns(rows: NDArray[np.int64], first: NDArray[np.int64], num_steps: int) -> dict[str, NDArray[np.int64]]:
    """Columns of the steps table, given the first step of each plan: what is copied for a plan, before that."""
    columns = {}
    for i, name in enumerate(_COLUMNS[1:], 1):
        columns[name] = constant(0, num_steps)
        if len(rows):
            columns[name] = np.zeros(num_steps, dtype=np.int64)
            columns[name][first[rows[:, 0]]] = rows[:, i]
    return columns
