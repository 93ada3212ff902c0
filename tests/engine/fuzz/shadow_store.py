"""What a device and the tiers behind it would hold: for every slot of every block the prefix that was written there.

A step reads, for each sequence that it computes, every slot of its context: a slot that holds anything but this
sequence's own prefix is a reuse of wrong content.
"""

from __future__ import annotations

from collections import abc
from typing import NamedTuple

from engine.core.kv.tiers.tier import DEVICE, DISK, HOST, Transfer
from engine.core.plan import StepPlan
from engine.core.sequence import Sequence, SequenceStatus
from tests.engine.fuzz.workload import Course, Place, Workload

Holders = dict[int, list[Sequence]]
GARBAGE = -1  # what drafts that are not accepted leave in their slots
COMING = -2  # what a transfer that is under way leaves there


class Token(NamedTuple):
    """What a plan gives a sequence that knew `known` output tokens before it; `num_last` of them with its last step."""

    sequence: Sequence
    known: int
    num_new: int
    num_last: int


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
        self.most: dict[Sequence, int] = {}  # tokens that decodes may know when their next step is planned
        self.padded: dict[int, dict[Sequence, int]] = {}  # by lane, the padding of those whose prompts ended last

    def courses(self, plan: StepPlan) -> dict[Sequence, Course]:
        """How the decodes of a plan go on in it."""
        for sequence in plan.fresh_decodes:
            self.most[sequence] = sequence.num_tokens + self.padded.get(plan.lane, {}).get(sequence, 0)
        return {
            s: self.workload.course(s, self.longest, plan.num_steps, self.most[s])
            for s in plan.decodes
            if s.status is not SequenceStatus.PADDING
        }

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
        courses = self.courses(plan)
        self.most |= {sequence: course[-1].most for sequence, course in courses.items()}
        if not self.workload.pads:
            chunks = [(c, work.num_tokens) for c, work in zip(plan.prefills, plan.work.chunks, strict=True)]
            tables = [(c.start + count, c.sequence.block_table) for c, count in chunks]
            assert all(end <= len(table) * self.workload.block_size for end, table in tables), "padding has no room"
            self.padded[plan.lane] = {c.sequence: self.workload.plans_ahead * (n - c.num_tokens) for c, n in chunks}
        spans += [(s, course[0].length - 1, course[-1].length - 1) for s, course in courses.items()]
        for sequence, start, end in spans:
            self._write(sequence, start, end, before, courses.get(sequence, ()))
        for sequence, _, end in spans:
            self._read(sequence, end)
        tokens = [Token(c.sequence, c.sequence.num_output_tokens, 1, 1) for c in plan.prefills if c.is_last]
        for s, course in courses.items():
            lengths = [place.length for place in course]
            tokens.append(Token(s, s.num_output_tokens, lengths[-1] - lengths[0], lengths[-1] - lengths[-2]))
        return tokens

    def land(self, sequence: Sequence) -> None:
        """The transfers that a parked sequence waits for are done: what they read must still have been there."""
        for block in sequence.block_table:
            if block in self.coming:
                self._copy(self.coming.pop(block))

    def _copy(self, transfer: Transfer) -> None:
        content = self.slots[transfer.source_tier][transfer.source]
        self.slots[transfer.target_tier][transfer.target] = content.copy()

    def _content(self, sequence: Sequence) -> list[int]:
        if sequence not in self.prefixes:
            index = sequence.request.sequences.index(sequence)
            self.prefixes[sequence] = self.workload.cases[sequence.request_id].prefixes(index)
        return self.prefixes[sequence]

    def _write(self, sequence: Sequence, start: int, end: int, before: Holders, course: abc.Sequence[Place]) -> None:
        prefixes, size, table = self._content(sequence), self.workload.block_size, sequence.block_table
        last = end
        for place in course[:-1]:
            last = max(last, place.length + place.num_drafts)
            may_be_accepted = place.most + place.num_drafts if self.workload.contiguous is None else last
            assert may_be_accepted <= len(table) * size, "no room for all that may be accepted"
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
