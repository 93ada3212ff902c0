"""What the scheduler hands to an executor: one step, or a run of identical decode steps."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.core.block_manager import BlockCopy
from engine.core.sequence import Sequence


class PrefillChunk(NamedTuple):
    """Compute `num_tokens` tokens of `sequence` from position `start` on; the last chunk yields a token."""

    sequence: Sequence
    start: int
    num_tokens: int
    is_last: bool


class BlockGrowth(NamedTuple):
    """At decode step `ahead` of the plan (0: its first), `blocks[i]` was appended to the table of `sequences[i]`."""

    ahead: int
    sequences: list[Sequence]
    blocks: list[int]


@dataclass(slots=True)
class StepDraft:
    """A step plan being put together by a policy."""

    now: int
    prefills: list[PrefillChunk] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    growth: list[BlockGrowth] = field(default_factory=list)
    num_decodes: int = 0
    is_starved: bool = False  # blocks ran out: somebody had to give way, so nobody may be admitted


class StepPlan(NamedTuple):
    """One step of the engine. Copies come first, then every KV write, then attention.

    Attributes:
        prefills: prompt chunks of this step.
        decodes: the decoding sequences, one token each: a view of the scheduler's own set, valid until `commit`.
        num_decodes: their number; 0 in a step that is all prefill.
        num_context_tokens: sum of their context lengths in the first step; each step adds `num_decodes`.
        num_squared_context_tokens: sum of the squares of these lengths in the first step, exact; with
            `num_context_tokens` it tells how uneven they are. After k steps it has grown by
            k * (2 * num_context_tokens + k * num_decodes).
        num_scattered_tokens: how many of the context tokens lie scattered in memory in the first step, about: those of
            blocks that did not follow the one before when their sequence began to decode, and all generated since;
            each step adds `num_decodes`. 0 where they are not counted.
        fresh_decodes: those that take no part in an earlier decode step since their last token.
        admitted: sequences that left the queue for this step.
        preempted: sequences that lost their blocks and went back to the queue.
        copies: blocks to copy before the step.
        growth: blocks appended for decoding sequences.
        horizon: how many consecutive decode steps may run before there is something to decide.
        num_steps: how many of them this plan covers; 1 until `Scheduler.extend`.
        num_running, num_waiting: requests after scheduling.
        num_used_blocks: blocks referenced in the first step.
    """

    prefills: list[PrefillChunk]
    decodes: Collection[Sequence]
    num_decodes: int
    num_context_tokens: int
    num_squared_context_tokens: int
    num_scattered_tokens: int
    fresh_decodes: list[Sequence]
    admitted: list[Sequence]
    preempted: list[Sequence]
    copies: list[BlockCopy]
    growth: list[BlockGrowth]
    horizon: int
    num_steps: int
    num_running: int
    num_waiting: int
    num_used_blocks: int


class StepOutcome(NamedTuple):
    """What a commit brought about.

    Attributes:
        finished: sequences that ended with this plan.
        resumed_gaps: for each sequence that came back from a preemption, the time between its tokens around it.
    """

    finished: list[Sequence]
    resumed_gaps: list[int]
