"""What a scheduling policy decides. Each policy is a file in `engine.core.policies`, found by its name."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

from engine.core.plan import StepDraft
from engine.core.policy_options import NoOptions
from engine.core.preemption import Preemption
from engine.core.sequence import Sequence
from engine.core.step_planner import StepPlanner
from engine.core.waiting_queue import QueueOrder, WaitingQueue


class QueueView(NamedTuple):
    """What the scheduler tells of the queue while only decodes run.

    Attributes:
        num_waiting, num_running: sequences.
        has_seat: one more sequence may run.
        head_fits: the pool has room for the head of the queue, as far as is known.
        head: the head of the queue.
        running: the sequences of the lane, in order of admission.
    """

    num_waiting: int
    num_running: int
    has_seat: bool
    head_fits: bool
    head: Sequence
    running: Collection[Sequence]


make_view = partial(tuple.__new__, QueueView)  # from a tuple of all fields, as `_make`, without a Python call


class Policy(Protocol):
    """Owns every decision: who is next, who enters, what a step is made of, and who gives way.

    Attributes:
        options_type: a frozen dataclass with the settings of its own, explained under `Attributes:`.
        chooses_victims: it preempts by an order of its own, whatever victim rule it is given.
        order: the order of the waiting queue.
        preemption: who gives way when blocks run out, and what it keeps.
        pauses_decodes: whether it lets single sequences sit out a step, so that it cannot serve beams.
        pads: whether its batches keep their shape: who has ended is computed on as padding until all have
            (`engine.core.padding`), and the prompts of a step are padded to the longest.
    """

    options_type: ClassVar[type[Any]]
    chooses_victims: ClassVar[bool]
    pauses_decodes: ClassVar[bool]
    pads: bool
    order: QueueOrder
    preemption: Preemption

    def __init__(self, order: QueueOrder, preemption: Preemption, options: Any) -> None: ...

    def make_queue(self) -> WaitingQueue:
        """An empty waiting queue; the scheduler asks once."""

    def admits(self, view: QueueView) -> bool:
        """Whether the head of the queue could enter the next step if nothing else changes.

        While it could not, decode steps run on without being planned one by one.
        """

    def compose(self, planner: StepPlanner, draft: StepDraft) -> None:
        """Fill `draft` with the next step, using the planner's building blocks. An empty draft means wait."""


class BasePolicy:
    """Chunked prefill: all decodes, then prompt chunks in what the token budget leaves.

    It keeps order and preemption, and admits whoever has a seat and blocks, but nobody in a step that preempts.
    """

    options_type: ClassVar[type[Any]] = NoOptions
    chooses_victims: ClassVar[bool] = False
    pauses_decodes: ClassVar[bool] = False
    pads: bool = False

    def __init__(self, order: QueueOrder, preemption: Preemption, options: Any) -> None:
        self.order = order
        self.preemption = preemption

    def make_queue(self) -> WaitingQueue:
        return WaitingQueue(self.order)

    def admits(self, view: QueueView) -> bool:
        return view.has_seat and view.head_fits

    def compose(self, planner: StepPlanner, draft: StepDraft) -> None:
        planner.decode(draft)
        budget = planner.max_num_batched_tokens - draft.num_decodes * planner.running.decodes.tokens_per_decode
        if planner.running.prefilling:
            budget = planner.continue_prefills(draft, budget)
        if not draft.is_starved:
            planner.admit(draft, budget, cut="any")


def nanoseconds(seconds: float) -> int:
    """Settings are in seconds; the times that a scheduler is given are in ns."""
    return round(seconds * 1e9)
