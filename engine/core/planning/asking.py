"""The question whether the head of the queue may enter, which planner, displacement and horizon ask a policy alike."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from engine.core.admission.limits import Limits
from engine.core.admission.need import Need, Needs
from engine.core.admission.waiting_queue import WaitingQueue
from engine.core.kv.block_manager import BlockManager
from engine.core.running.running_set import RunningSet
from engine.core.running.supply import suppliers
from engine.core.sequence import Sequence


class Admit:
    """It may enter and compute `num_tokens` tokens, at most what it needs and what the step has left."""

    __slots__ = ("num_tokens",)

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens


class Wait(NamedTuple):
    """It may not enter before something changes: a release, an arrival at the head, or a block that it could share.

    Attributes:
        until: the time at which the answer may change without that, in ns.
        steps: decode steps after which it may.
    """

    until: int | None = None
    steps: int | None = None


WAIT: Final = Wait()
WAIT_FOR_A_STEP: Final = Wait(steps=1)


class Admission:
    """Asks the policy whether sequences may enter a lane.

    Args:
        admit: the policy's rule.
    """

    def __init__(
        self, admit: AdmissionRule, blocks: BlockManager, waiting: WaitingQueue, running: RunningSet, limits: Limits
    ) -> None:
        self.admit = admit
        self.blocks = blocks
        self.waiting = waiting
        self.running = running
        self.bind(limits)
        self._watermark = limits.watermark_blocks
        self._max_num_seqs = limits.max_num_seqs

    def bind(self, limits: Limits) -> None:
        """Go by other `limits` of chunks from now on."""
        self.limits = limits
        self.needs = Needs(self.blocks, limits, self.running.decodes.tokens_per_decode - 1)
        self.look = self.needs.look

    @property
    def free_seats(self) -> int:
        running = self.running
        return self._max_num_seqs - len(running.sequences) - running.num_reserved

    def state(
        self, now: int, free_tokens: int, may_cut: bool, free_seats: int, follows_decodes: bool = False
    ) -> AdmissionState:
        """What is left beside `free_seats`, for this step or, with `follows_decodes`, for the one after it."""
        sequences, free_blocks, watermark = self.running.sequences, self.blocks.num_free_blocks, self._watermark
        if watermark and sequences:
            free_blocks -= watermark
        return AdmissionState(now, free_tokens, may_cut, free_seats, free_blocks, sequences, follows_decodes, self)

    def hold(self, need: Need, state: AdmissionState, answer: Wait) -> None:
        """Note what the head waits for; where that is blocks, it is not asked about again before there may be some."""
        if need.padding:  # the next step may not pad
            return
        lacks_blocks = need.is_seen and need.blocks > state.free_blocks
        if not lacks_blocks and (answer != WAIT or not need.is_seen):
            return
        sequence, match = need.sequence, need.match
        num_matched = match.num_kept + len(match.blocks)
        may_share = sequence.host_blocks is None
        awaited = suppliers(self.running, sequence, num_matched, self.blocks) if may_share else []
        self.waiting.hold_head(need, num_matched, awaited, is_blocked=lacks_blocks)


class AdmissionState:
    """What is left for the head of the queue, and who is there.

    Attributes:
        now: the time of planning, in ns.
        free_tokens: that the step has left.
        may_cut: whether a longer prompt may be cut to these.
        free_seats: of the lane.
        free_blocks: that an admission may take: the watermark is left to those who run.
        running: the sequences of the lane, in order of admission.
        follows_decodes: it is the step after one in which all decodes compute a token.
        lane: what the next three are read from.
    """

    __slots__ = (
        "now", "free_tokens", "may_cut", "free_seats", "free_blocks", "running", "follows_decodes", "lane",
    )  # fmt: skip

    def __init__(
        self,
        now: int,
        free_tokens: int,
        may_cut: bool,
        free_seats: int,
        free_blocks: int,
        running: Collection[Sequence],
        follows_decodes: bool,
        lane: Admission,
    ) -> None:
        self.now = now
        self.free_tokens = free_tokens
        self.may_cut = may_cut
        self.free_seats = free_seats
        self.free_blocks = free_blocks
        self.running = running
        self.follows_decodes = follows_decodes
        self.lane = lane

    def with_free(self, seats: int, blocks: int, running: Collection[Sequence]) -> AdmissionState:
        """The same with so many free seats and blocks, beside these sequences."""
        return AdmissionState(
            self.now, self.free_tokens, self.may_cut, seats, blocks, running, self.follows_decodes, self.lane
        )

    @property
    def waiting(self) -> WaitingQueue:
        """The queue."""
        return self.lane.waiting

    @property
    def blocks(self) -> BlockManager:
        """The pool, of all lanes."""
        return self.lane.blocks

    @property
    def has_decoded(self) -> bool:
        """Whether somebody of the lane has decoded, when the step comes."""
        running, decodes = self.lane.running, self.lane.running.decodes
        return self.follows_decodes or len(decodes.fresh) < len(decodes.sequences) or bool(running.ending)


AdmissionRule = Callable[[Need, AdmissionState], Admit | Wait]


def admit_what_fits(need: Need, state: AdmissionState) -> Admit | Wait:
    """A sequence with a seat, tokens and blocks may enter, with a part of its prompt where that may be cut."""
    if need.seats > state.free_seats:
        return WAIT
    num_tokens = need.tokens
    if num_tokens > state.free_tokens:
        if not state.may_cut or need.padding:
            return WAIT_FOR_A_STEP
        num_tokens = state.free_tokens
    return Admit(num_tokens) if need.blocks <= state.free_blocks else WAIT
