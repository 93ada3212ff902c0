"""What a device and the tiers behind it would hold: for every slot of every block the prefix that was written there.

A step reads, for each sequence that it computes, every slot of its context: a slot that holds anything but this
sequence's own prefix is a reuse of wrong content.
"""

from __future__ import annotations

from typing import NamedTuple

from engine.core.kv.tier import DEVICE, DISK, HOST, Transfer
from engine.core.plan import StepPlan
from engine.core.sequence import Sequence, SequenceStatus
from tests.engine.fuzz.workload import Workload

Holders = dict[int, list[Sequence]]
GARBAGE = -1  # what drafts that are not accepted leave in their slots
COMING = -2  # what a transfer that is under way leaves there


class Token(NamedTuple):
    """What a plan gives a sequence that knew `known` output tokens before it."""

    sequence: Sequence
    known: int
    num_new: int


class ShadowStore:
    """Slots that hold the running hash of all tokens up to their own."""

    def __init__(self, workload: Workload, longest: int) -> None:
        self.workload = workload
        self.longest = longest
        empty = [0] * workload.block_size
        self.slots = {
            DEVICE: [empty.copy() for _ in range(workload.num_blocks)],
            HOST: [empty.copy() for _ in range(workload.num_host_blocks)],
            DISK: [empty.copy() for _ in range(workload.offload.num_disk_blocks if workload.offload else 0)],
        }
        self.coming: dict[int, Transfer] = {}  # by the block of a parked sequence that it writes
        self.prefixes: dict[Sequence, list[int]] = {}

    def execute(self, plan: StepPlan, before: Holders) -> list[Token]:
        """Execute a plan, given who held which block before it was made; returns the tokens that it yields."""
        stored = [(t.target_tier, t.target) for t in plan.transfers if t.target_tier != DEVICE]
        assert len(set(stored)) == len(stored), "a block of a tier is written twice"
        parked = {block for sequence in plan.parked for block in sequence.block_table}
        for transfer in plan.transfers:
            if transfer.target_tier == DEVICE != transfer.source_tier and transfer.target in parked:
                assert transfer.target not in self.coming, "a block is coming twice"
                self.coming[transfer.target] = transfer
                self.slots[DEVICE][transfer.target] = [COMING] * self.workload.block_size
            else:
                self._copy(transfer)
        spans = [(c.sequence, c.start, c.start + c.num_tokens) for c in plan.prefills]
        for row in plan.decodes:
            if row.status is SequenceStatus.PADDING:
                self._write_padding(row, plan.num_steps, before)
        gains = {s: self.gain(s, plan.num_steps) for s in plan.decodes if s.status is not SequenceStatus.PADDING}
        spans += [(s, s.num_tokens - 1, s.num_tokens - 1 + gain) for s, gain in gains.items()]
        for sequence, start, end in spans:
            self._write(sequence, start, end, before)
        for sequence, _, end in spans:
            self._read(sequence, end)
        tokens = [Token(c.sequence, c.sequence.num_output_tokens, 1) for c in plan.prefills if c.is_last]
        return tokens + [Token(s, s.num_output_tokens, gain) for s, gain in gains.items()]

    def land(self, sequence: Sequence) -> None:
        """The transfers that a parked sequence waits for are done: what they read must still have been there."""
        for block in sequence.block_table:
            if block in self.coming:
                self._copy(self.coming.pop(block))

    def _copy(self, transfer: Transfer) -> None:
        content = self.slots[transfer.source_tier][transfer.source]
        self.slots[transfer.target_tier][transfer.target] = content.copy()

    def gain(self, sequence: Sequence, num_steps: int) -> int:
        """Tokens that a decoding sequence gains with the next steps."""
        return self._lengths(sequence, num_steps)[-1] - sequence.num_tokens

    def _lengths(self, sequence: Sequence, num_steps: int) -> list[int]:
        """Tokens that a decoding sequence knows before each of the next steps, and after them."""
        lengths = [sequence.num_tokens]
        for _ in range(num_steps):
            lengths.append(lengths[-1] + self.workload.gain(sequence, lengths[-1]))
        return lengths

    def _content(self, sequence: Sequence) -> list[int]:
        if sequence not in self.prefixes:
            index = sequence.request.sequences.index(sequence)
            self.prefixes[sequence] = self.workload.cases[sequence.request_id].prefixes(index)
        return self.prefixes[sequence]

    def _write(self, sequence: Sequence, start: int, end: int, before: Holders) -> None:
        prefixes, size, table = self._content(sequence), self.workload.block_size, sequence.block_table
        last = end
        if sequence.status is SequenceStatus.DECODING:
            length = start + 1
            while length < end + 1:
                last = max(last, length + self.workload.num_drafted(self.longest, length))
                length += self.workload.gain(sequence, length)
        assert last <= len(table) * size, "no room for what the step writes"
        for position in range(start, last):
            block = table[position // size]
            others = [s for s in before.get(block, ()) if s is not sequence and block in s.block_table]
            assert not others, "a block that another holds is written"
            value = prefixes[position + 1] if position < end else GARBAGE
            self.slots[DEVICE][block][position % size] = value

    def _write_padding(self, row: Sequence, num_steps: int, before: Holders) -> None:
        size = self.workload.block_size
        for position in range(row.num_tokens - 1, row.num_tokens - 1 + num_steps):
            block = row.block_table[position // size]
            others = [s for s in before.get(block, ()) if s is not row and block in s.block_table]
            assert not others, "padding is written into a block that another holds"
            self.slots[DEVICE][block][position % size] = GARBAGE

    def _read(self, sequence: Sequence, end: int) -> None:
        size = self.workload.block_size
        seen = [slot for block in sequence.block_table[: -(-end // size)] for slot in self.slots[DEVICE][block]]
        assert seen[:end] == self._content(sequence)[1 : end + 1], "attention reads wrong content"
