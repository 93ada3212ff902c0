"""What a scheduling policy decides. Each policy is a file in `engine.core.policies`, found by its name."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from engine.core.plan import StepDraft
from engine.core.preemption import Preemption
from engine.core.step_planner import StepPlanner
from engine.core.waiting_queue import QueueOrder


class QueueView(NamedTuple):
    """What the scheduler tells of the queue while only decodes run.

    Attributes:
        num_waiting, num_running: sequences.
        has_seat: one more sequence may run.
        head_fits: the pool has room for the head of the queue, as far as is known.
    """

    num_waiting: int
    num_running: int
    has_seat: bool
    head_fits: bool


class Policy(Protocol):
    """Owns every decision: who is next, who enters, what a step is made of, and who gives way.

    Attributes:
        order: the order of the waiting queue.
        preemption: who gives way when blocks run out, and what it keeps.
        pauses_decodes: whether it lets single sequences sit out a step, so that it cannot serve beams.
    """

    pauses_decodes: bool
    order: QueueOrder
    preemption: Preemption

    def __init__(self, order: QueueOrder, preemption: Preemption) -> None: ...

    def admits(self, view: QueueView) -> bool:
        """Whether the head of the queue could enter the next step if nothing else changes.

        While it could not, decode steps run on without being planned one by one.
        """

    def compose(self, planner: StepPlanner, draft: StepDraft) -> None:
        """Fill `draft` with the next step, using the planner's building blocks. An empty draft means wait."""


class BasePolicy:
    """Keeps order and preemption, and admits whoever has a seat and blocks."""

    pauses_decodes = False

    def __init__(self, order: QueueOrder, preemption: Preemption) -> None:
        self.order = order
        self.preemption = preemption

    def admits(self, view: QueueView) -> bool:
        return view.has_seat and view.head_fits
