"""The links between a device, its host and a disk: how long KV blocks take from one to the other."""

from __future__ import annotations

import heapq
from collections import abc
from typing import Protocol

from engine.core.kv.tiers.shared_store import STORE, SharedStore
from engine.core.kv.tiers.tier import DEVICE, DISK, HOST, Transfer
from engine.core.plan import StepPlan
from engine.core.sequence import Sequence
from simulator.arrivals import NEVER


class TransferEngine(Protocol):
    """Moves the blocks of plans."""

    @property
    def next_ns(self) -> int:
        """When the next sequence is ready that waits for transfers, NEVER where none does."""

    def start(self, plan: StepPlan, now_ns: int) -> int:
        """Begin the transfers of a plan; returns how long its step must wait for them, in ns."""

    def pop_ready(self, until_ns: int) -> list[Sequence]:
        """Take out the sequences whose transfers are done."""


class NoTransfers:
    """For schedulers without a host tier."""

    next_ns = NEVER

    def start(self, plan: StepPlan, now_ns: int) -> int:
        return 0

    def pop_ready(self, until_ns: int) -> list[Sequence]:
        return []


class Link:
    """One direction of a link of `bytes_per_s`, which copies blocks of `block_bytes` one after the other."""

    def __init__(self, block_bytes: int, bytes_per_s: float) -> None:
        self.block_ns = block_bytes / bytes_per_s * 1e9
        self._free_at = 0

    def copy(self, num_blocks: int, from_ns: int) -> int:
        """Queue blocks that are there at `from_ns`; returns when they are copied."""
        if num_blocks:
            self._free_at = max(self._free_at, from_ns) + round(num_blocks * self.block_ns)
            return self._free_at
        return from_ns

    def stream(self, num_blocks: int, num_layers: int, began_ns: int, ended_ns: int) -> int:
        """Queue blocks that a step computes layer by layer between these times; returns when the last layer is there.

        Between two layers the link is free for others.
        """
        first_ns = began_ns + (ended_ns - began_ns) // num_layers
        whole_ns = num_blocks * self.block_ns
        self._free_at = max(self._free_at, first_ns) + round(whole_ns)
        return max(self._free_at, ended_ns + round(whole_ns / num_layers))


class StoreLink:
    """The link of a server to a store that it shares, one for each device, with a queue for each direction.

    Args:
        latency_ns: of what one plan saves, and of what it loads for one sequence.
    """

    def __init__(self, store: SharedStore, block_bytes: int, bytes_per_s: float, latency_ns: int) -> None:
        self._store = store
        self._out, self._in = Link(block_bytes, bytes_per_s), Link(block_bytes, bytes_per_s)
        self._latency_ns = latency_ns

    def save(self, blocks: abc.Sequence[int], from_ns: int) -> None:
        """Copy to these blocks of the store, which others find from then on."""
        for block in blocks:
            self._store.land(block, self._out.copy(1, from_ns) + self._latency_ns)

    def load(self, num_blocks: int, from_ns: int) -> int:
        """Returns when so many blocks are here."""
        return self._in.copy(num_blocks, from_ns) + self._latency_ns


class TierLinks:
    """The links of one device to its host, and of the host to a disk, each with a queue for each direction.

    What leaves the device is copied before the step, which may overwrite it. Loads for a parked sequence run beside the
    steps, one sequence after the other, once what leaves the device with the same plan is copied; loads for sequences
    that are not parked delay the step. Blocks pass through buffers on the host between disk and device: each is sent on
    as it comes, and a block that gives way on the host waits in such a buffer for the disk.

    Args:
        block_bytes: of a block, as the device has it.
        disk: the link to and the link from the disk, None without one.
        store: the link to a store that servers share, None without one. What is saved there passes through buffers on
            the host, so that steps do not wait for it.
    """

    def __init__(
        self,
        block_bytes: int,
        bytes_per_s: float,
        disk: tuple[Link, Link] | None = None,
        store: StoreLink | None = None,
    ) -> None:
        self._store = store
        self._out, self._in = Link(block_bytes, bytes_per_s), Link(block_bytes, bytes_per_s)
        self._disk = disk
        self._on_disk_at: dict[int, int] = {}  # by block of the disk, when it was or will be written
        self._arrivals: dict[int, int] = {}  # by block of a parked sequence, when its content is there
        self._parked: list[tuple[int, int, Sequence]] = []  # a heap by the time when they are ready
        self._num_parked = 0
        self.next_ns = NEVER

    def start(self, plan: StepPlan, now_ns: int) -> int:
        num_out = 0
        loads: list[Transfer] = []
        saves: list[int] = []
        for transfer in plan.transfers:
            source_tier, _, target_tier, target = transfer
            if target_tier == HOST:
                num_out += 1
            elif target_tier == DISK:
                assert self._disk is not None
                self._on_disk_at[target] = self._disk[0].copy(1, now_ns)
            elif target_tier == STORE:
                saves.append(target)
            elif source_tier != DEVICE:
                loads.append(transfer)
        if saves:
            assert self._store is not None
            self._store.save(saves, now_ns)
        out_at = self._out.copy(num_out, now_ns)
        there_at = out_at
        for sequence in plan.parked:
            loads = self._park(sequence, loads, now_ns, out_at)
        if loads:
            there_at = self._load(loads, out_at)
        return there_at - now_ns

    def pop_ready(self, until_ns: int) -> list[Sequence]:
        ready = []
        while self._parked and self._parked[0][0] <= until_ns:
            sequence = heapq.heappop(self._parked)[-1]
            for block in sequence.block_table:
                self._arrivals.pop(block, None)
            ready.append(sequence)
        self._set_next()
        return ready

    def _park(self, sequence: Sequence, loads: list[Transfer], now_ns: int, from_ns: int) -> list[Transfer]:
        """Queue those of `loads` that are for `sequence`; returns the others."""
        table = set(sequence.block_table)
        mine = [load for load in loads if load.target in table]
        ready_at = max(self._load(mine, from_ns), from_ns + 1) if mine else from_ns
        ready_at = max([ready_at, *(self._arrivals[block] for block in table & self._arrivals.keys())])
        self._arrivals.update((load.target, ready_at) for load in mine)
        heapq.heappush(self._parked, (ready_at, self._num_parked, sequence))
        self._num_parked += 1
        self._set_next()
        return [load for load in loads if load.target not in table] if len(mine) < len(loads) else []

    def _load(self, loads: abc.Sequence[Transfer], from_ns: int) -> int:
        """Queue blocks that come to the device; returns when they are there."""
        there_at = self._in.copy(len(loads), from_ns)
        if num_stored := sum(load.source_tier == STORE for load in loads):
            assert self._store is not None
            there_at = max(there_at, self._store.load(num_stored, from_ns) + round(self._in.block_ns))
        on_disk = [load.source for load in loads if load.source_tier == DISK]
        if not on_disk:
            return there_at
        assert self._disk is not None
        written_at = max(self._on_disk_at[block] for block in on_disk)
        read_at = self._disk[1].copy(len(on_disk), max(from_ns, written_at))
        return max(there_at, read_at + round(self._in.block_ns))

    def _set_next(self) -> None:
        self.next_ns = self._parked[0][0] if self._parked else NEVER
