"""A workload to try a scheduler with: its requests, and the scheduler that serves them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.core.decodes.interface import Decodes
from engine.core.decodes.ragged import RaggedDecodes
from engine.core.decodes.unforeseen import UnforeseenDecodes
from engine.core.decodes.uniform import UniformDecodes
from engine.core.hashing import chain_hash
from engine.core.kv.reserved.reservation import Contiguous
from engine.core.plan import StepPlan
from engine.core.scheduler import Scheduler
from engine.core.scheduler_making import make_scheduler
from engine.core.scheduler_options import OffloadOptions, SchedulerOptions
from engine.core.sequence import Sequence

FORK_TOKENS = 1000  # how far the tokens of one sequence of a request are from those of the next


class Place(NamedTuple):
    """How far a decode is before a step.

    Attributes:
        length: tokens that it knows.
        most: that it may know when the step is planned: where steps are planned ahead, drafts are still under way then.
        num_drafts: drafts that the step verifies.
    """

    length: int
    most: int
    num_drafts: int


Course = list[Place]
"""The places of a decode before each of its next steps, and after them."""


@dataclass
class Case:
    """A request of a workload."""

    tokens: list[int]  # prompt, then what the model would generate in the first sequence
    num_prompt_tokens: int
    arrival_step: int
    contents: str  # "tokens", "hashes" (identity of blocks) or "none"
    priority: int = 0
    abort_step: int | None = None
    stop_after: int | None = None  # a stop condition met after this many output tokens
    num_sequences: int = 1
    tenant: int = 0
    deadline: int | None = None

    @property
    def max_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    def prefixes(self, index: int) -> list[int]:
        """Hash of the first k tokens of a sequence for every k: what a slot holds after position k - 1 was written."""
        hashes = [0]
        for position, token in enumerate(self.tokens):
            own = token + FORK_TOKENS * index if position >= self.num_prompt_tokens else token
            hashes.append(chain_hash(hashes[-1], [own]))
        return hashes


@dataclass
class Workload:
    cases: list[Case]
    options: SchedulerOptions
    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_host_blocks: int = 0
    offload: OffloadOptions | None = None
    transfer_block_us: float = 10.0
    num_lanes: int = 1
    num_drafts: int | None = None  # None: decodes grow by one token per step
    max_model_len: int | None = None
    contiguous: Contiguous | None = None  # None: blocks are paged
    unforeseen: bool = False  # whether the calendar of the decodes is told of gains only when a step has run

    @property
    def tokens_per_decode(self) -> int:
        return 1 + (self.num_drafts or 0)

    @property
    def pads(self) -> bool:
        """Whether batches keep their shape."""
        return self.options.policy == "static" and bool(self.options.options.get("padded", True))

    def make_scheduler(self) -> Scheduler:
        scheduler = make_scheduler(
            self.options,
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            num_host_blocks=self.num_host_blocks,
            offload=self.offload,
            transfer_block_us=self.transfer_block_us,
            num_lanes=self.num_lanes,
            max_model_len=self.max_model_len,
            contiguous=self.contiguous,
            make_decodes=self._make_decodes,
        )
        scheduler.blocks.index.shortest_run = 2  # the workloads are small
        return scheduler

    def _make_decodes(self, block_size: int, longest: int) -> Decodes:
        if self.num_drafts is None:
            return UniformDecodes(block_size)
        if self.unforeseen:
            return UnforeseenDecodes(block_size, longest, self.num_drafts)

        def trajectory(sequence: Sequence) -> NDArray[np.int64]:
            num_steps = sequence.end_length - sequence.num_tokens
            lengths = [place.length for place in self.course(sequence, longest, num_steps, sequence.num_tokens)]
            return np.array(lengths) - lengths[0]

        return RaggedDecodes(block_size, longest, self.num_drafts, trajectory, plans_ahead=self.plans_ahead)

    @property
    def plans_ahead(self) -> bool:
        return self.options.async_scheduling

    def course(self, sequence: Sequence, longest: int, num_steps: int, most: int) -> Course:
        """How a decode, which may know `most` tokens when its next step is planned, goes on."""
        length, course = sequence.num_tokens, Course()
        for _ in range(num_steps + 1):
            num_drafts = self.num_drafted(longest, most)
            course.append(Place(length, most, num_drafts))
            gain = min(1 + chain_hash(sequence.request_id, [length]) % self.tokens_per_decode, 1 + num_drafts)
            most = length + 1 + num_drafts
            length = min(length + gain, sequence.end_length)
            most = most if self.plans_ahead else length
        return course

    def num_drafted(self, longest: int, length: int) -> int:
        """Drafts that a step verifies of a sequence that may know `length` tokens, and have `longest`."""
        return max(0, min(self.tokens_per_decode - 1, longest - 1 - length))

    def padding(self, plan: StepPlan | None, longest: int, sequence: Sequence, start: int) -> int | None:
        """Tokens that an admission, which has the token at `start` to compute beside a plan, is padded by; None: it
        waits."""
        rule = self.options.options.get("pads_admissions", "never")
        if rule == "never" or not self.num_drafts or sequence.num_forks or start + 1 < sequence.num_tokens:
            return 0
        goes_on = plan is not None and any(chunk.sequence not in plan.admitted for chunk in plan.prefills)
        has_decodes = plan is not None and plan.num_decodes > 0
        if goes_on or not (has_decodes or rule == "always" and start):
            return 0
        if start + 1 + self.num_drafts + (rule != "or_waits") <= longest:
            return self.num_drafts
        return None if rule == "or_waits" else 0

    def num_decode_tokens(self, plan: StepPlan, longest: int) -> int:
        """Tokens that the decodes of a plan which was not planned ahead compute in its first step."""
        if self.num_drafts is None:
            return plan.num_decodes
        return sum(1 + self.num_drafted(longest, sequence.num_tokens) for sequence in plan.decodes)
