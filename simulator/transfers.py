"""The link between a device and its host: how long KV blocks take from one to the other."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from engine.core.kv.tier import DEVICE
from engine.core.plan import StepPlan
from engine.core.sequence import Sequence
from simulator.arrivals import NEVER


class TransferEngine(Protocol):
    """Moves the blocks of plans.

    Attributes:
        next_ns: when the next parked sequence is ready, NEVER where none is parked.
    """

    next_ns: int

    def start(self, plan: StepPlan, now_ns: int) -> int:
        """Begin the transfers of a plan; returns how long its step must wait for them, in ns."""

    def pop_ready(self, until_ns: int) -> list[Sequence]:
        """Take out the parked sequences whose KV is back."""


class NoTransfers:
    """For schedulers without a host tier."""

    next_ns = NEVER

    def start(self, plan: StepPlan, now_ns: int) -> int:
        return 0

    def pop_ready(self, until_ns: int) -> list[Sequence]:
        return []


class HostLink:
    """A link of `bytes_per_s` in each direction for blocks of `block_bytes`.

    What leaves the device is copied before the step, which may overwrite it. What comes back is copied beside the
    steps, one sequence after the other.
    """

    def __init__(self, block_bytes: int, bytes_per_s: float) -> None:
        self._block_ns = block_bytes / bytes_per_s * 1e9
        self._free_at = 0
        self._parked: deque[tuple[int, Sequence]] = deque()
        self.next_ns = NEVER

    def start(self, plan: StepPlan, now_ns: int) -> int:
        if not plan.transfers:
            return 0
        num_out = sum(t.source_tier == DEVICE != t.target_tier for t in plan.transfers)
        wait_ns = round(num_out * self._block_ns)
        for sequence in plan.parked:
            num_blocks = len(sequence.host_blocks or ())
            self._free_at = max(self._free_at, now_ns + wait_ns) + max(1, round(num_blocks * self._block_ns))
            self._parked.append((self._free_at, sequence))
        self._set_next()
        return wait_ns

    def pop_ready(self, until_ns: int) -> list[Sequence]:
        ready = []
        while self._parked and self._parked[0][0] <= until_ns:
            ready.append(self._parked.popleft()[1])
        self._set_next()
        return ready

    def _set_next(self) -> None:
        self.next_ns = self._parked[0][0] if self._parked else NEVER
