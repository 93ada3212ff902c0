"""What the scheduler hands to an executor: one step, or a run of decode steps without decisions in between."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from engine.core.kv.tiers.tier import Transfer
from engine.core.sequence import Request, Sequence
from engine.core.work import StepWork

if TYPE_CHECKING:  # so that --help is fast
    import numpy as np
    from numpy.typing import NDArray


class PrefillChunk:
    """Compute `num_tokens` tokens of `sequence` from position `start` on; the last chunk yields tokens."""

    __slots__ = ("sequence", "start", "num_tokens", "is_last")

    def __init__(self, sequence: Sequence, start: int, num_tokens: int, is_last: bool) -> None:
        self.sequence = sequence
        self.start = start
        self.num_tokens = num_tokens
        self.is_last = is_last

    @property
    def num_samples(self) -> int:
        """Tokens that it yields: after the last chunk, one for `sequence` and each that is to be forked from it."""
        return 1 + self.sequence.num_forks if self.is_last else 0


class BlockGrowth:
    """At decode step `ahead` of the plan (0: its first), `blocks[i]` was appended to the table of `sequences[i]`."""

    __slots__ = ("ahead", "sequences", "blocks")

    def __init__(self, ahead: int, sequences: list[Sequence], blocks: list[int]) -> None:
        self.ahead = ahead
        self.sequences = sequences
        self.blocks = blocks


class StepDraft:
    """A step plan being put together by a policy. One that stays empty means: wait.

    The attributes are those of `StepPlan`, and:
        now: the time of planning.
        padded: of the admitted, those that compute as many tokens as a decode with drafts, though they need only one.
        wait_until: when to plan again at the latest if the draft stays empty; None: when something happens.
        is_starved: blocks ran out, so somebody had to give way and nobody may be admitted.
        is_single: a prompt that is cut and has no part in this step may have one in the next.
    """

    __slots__ = (
        "now", "prefills", "admitted", "padded", "parked", "preempted", "paused", "transfers", "growth", "num_decodes",
        "wait_until", "is_starved", "is_single",
    )  # fmt: skip

    def __init__(self, now: int) -> None:
        self.now = now
        self.prefills: list[PrefillChunk] = []
        self.admitted: list[Sequence] = []
        self.padded: list[Sequence] = []
        self.parked: list[Sequence] = []
        self.preempted: list[Sequence] = []
        self.paused: list[Sequence] = []
        self.transfers: list[Transfer] = []
        self.growth: list[BlockGrowth] = []
        self.num_decodes = 0
        self.wait_until: int | None = None
        self.is_starved = False
        self.is_single = False


class StepPlan:
    """One step of the engine, or several decode steps. Transfers come first, then every KV write, then attention.

    Attributes:
        lane: which of the scheduler's lanes it is for; 0 unless the executor is a pipeline.
        prefills: prompt chunks of this step.
        decodes: the decoding sequences: a view of the lane's own set, valid until the lane is planned again.
        num_decodes: their number; 0 in a step that is all prefill.
        work: what the first step costs, and those that may follow it.
        fresh_decodes: those that take no part in an earlier decode step since their last token.
        admitted: sequences that left the queue for this step.
        parked: those of them that wait until their KV is back from another tier.
        preempted: sequences that lost their blocks and went back to the queue.
        paused: decoding sequences that keep their blocks but took no part in this step, or in one that came out empty.
        transfers: blocks to copy before the step; with vLLM's connector beside the steps, those of all jobs since the
            last plan.
        growth: blocks appended for decoding sequences.
        horizon: how many consecutive decode steps may run before there is something to decide.
        num_steps: how many of them this plan covers; 1 until `Scheduler.extend`.
        num_running, num_waiting: sequences after scheduling.
        num_used_blocks: blocks referenced in the first step.
        num_saved_blocks: how many more they would be if no block was in several tables; the same in all steps.
        num_kv_tokens: slots of these blocks that hold a token's KV when the first step has run.
        num_reserved_slots: slots of these blocks that are kept for tokens to come: as `SlotCounts` has it.
        num_external_slots: slots of free blocks that are of no use: as `SlotCounts` has it.
        num_padding_seqs: how many of `decodes` are padding (`engine.core.running.padding`), or have ended with an
            accepted draft of the step under way.
        num_padding_tokens: tokens of the first step that nobody needs: of these, and of prompts that are padded to the
            longest of the step or to a decode with drafts, as `work` has them and `prefills` has not.
    """

    __slots__ = (
        "lane", "prefills", "decodes", "num_decodes", "work", "fresh_decodes", "admitted", "parked", "preempted",
        "paused", "transfers", "growth", "horizon", "num_steps", "num_running", "num_waiting", "num_used_blocks",
        "num_saved_blocks", "num_kv_tokens", "num_reserved_slots", "num_external_slots", "num_padding_seqs",
        "num_padding_tokens",
    )  # fmt: skip

    def __init__(
        self,
        lane: int,
        prefills: list[PrefillChunk],
        decodes: Collection[Sequence],
        num_decodes: int,
        work: StepWork,
        fresh_decodes: list[Sequence],
        admitted: list[Sequence],
        parked: list[Sequence],
        preempted: list[Sequence],
        paused: list[Sequence],
        transfers: list[Transfer],
        growth: list[BlockGrowth],
        horizon: int,
        num_running: int,
        num_waiting: int,
        num_used_blocks: int,
        num_saved_blocks: int,
        num_kv_tokens: int,
        num_reserved_slots: int,
        num_external_slots: int,
        num_padding_seqs: int,
        num_padding_tokens: int,
    ) -> None:
        self.lane = lane
        self.prefills = prefills
        self.decodes = decodes
        self.num_decodes = num_decodes
        self.work = work
        self.fresh_decodes = fresh_decodes
        self.admitted = admitted
        self.parked = parked
        self.preempted = preempted
        self.paused = paused
        self.transfers = transfers
        self.growth = growth
        self.horizon = horizon
        self.num_steps = 1
        self.num_running = num_running
        self.num_waiting = num_waiting
        self.num_used_blocks = num_used_blocks
        self.num_saved_blocks = num_saved_blocks
        self.num_kv_tokens = num_kv_tokens
        self.num_reserved_slots = num_reserved_slots
        self.num_external_slots = num_external_slots
        self.num_padding_seqs = num_padding_seqs
        self.num_padding_tokens = num_padding_tokens

    def first_tokens(self, end_ns: int) -> list[Request]:
        """The requests that have their first token since the plan was committed at `end_ns`."""
        ended = [chunk.sequence.request for chunk in self.prefills if chunk.is_last]
        return [request for request in ended if request.first_token_time == end_ns]


PlanStart = tuple[int, int, Collection[int | None]]
"""What was known of a plan's sequences when it began; planning the next step while it runs can change that.

The prompt tokens of the sequences that it admits for the first time, how many of these tokens were in the cache, and
when each of `fresh_decodes` but padding got its last token.
"""


def plan_start(plan: StepPlan) -> PlanStart:
    """The state of a plan's sequences; to be asked for before the next plan is made."""
    admitted = cached = 0
    for sequence in plan.admitted:
        if not sequence.num_preemptions and not sequence.request.prefilled_elsewhere:
            admitted += sequence.request.num_prompt_tokens
            cached += sequence.num_cached_tokens
    fresh = plan.fresh_decodes
    if plan.num_padding_seqs:
        fresh = [sequence for sequence in fresh if sequence.last_token_time is not None]  # padding never got one
    return admitted, cached, [sequence.last_token_time for sequence in fresh] if fresh else ()


class Drafts(NamedTuple):
    """Tokens that the decodes of each step of a plan drafted, and how many of them were accepted, int64[num_steps]."""

    num_drafted: NDArray[np.int64]
    num_accepted: NDArray[np.int64]


class StepOutcome:
    """What a commit brought about.

    Attributes:
        finished: requests that ended with this plan.
        resumed_gaps: for each sequence that came back from a preemption, the time between its tokens around it.
        drafts: what became of speculative drafts; None for a plan without decodes, or without speculation.
    """

    __slots__ = ("finished", "resumed_gaps", "drafts")

    def __init__(self, finished: list[Request], resumed_gaps: list[int], drafts: Drafts | None) -> None:
        self.finished = finished
        self.resumed_gaps = resumed_gaps
        self.drafts = drafts
