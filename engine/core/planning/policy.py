"""What a scheduling policy decides. Each policy is a file in `engine.core.policies`, found by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from engine.core.admission.need import Need
from engine.core.admission.waiting_queue import QueueOrder, WaitingQueue
from engine.core.plan import StepDraft
from engine.core.planning.asking import AdmissionState, Admit, Wait, admit_what_fits
from engine.core.planning.policy_options import NoOptions
from engine.core.planning.step_planner import StepPlanner
from engine.core.running.preemption import Preemption


class Policy(Protocol):
    """Owns every decision: who is next, who enters, what a step is made of, and who gives way.

    Attributes:
        options_type: a frozen dataclass with the settings of its own, explained under `Attributes:`.
        chooses_victims: it preempts by an order of its own, whatever victim rule it is given.
        needs: options of the scheduler that it cannot do without, by name; a rule of eviction that a policy needs goes
            with that policy only.
        order: the order of the waiting queue.
        preemption: who gives way when blocks run out, and what it keeps.
        finds_verified: what the drafts of a step brought can be found by others when it has run, not only when the next
            one is planned.
        never_recomputes: whether no sequence computes its prompt again after it has computed it once.
        pads: whether its batches keep their shape: finished sequences are padding rows until all have ended
            (`engine.core.running.padding`), and the prompts of a step are padded to the longest.
    """

    options_type: ClassVar[type[Any]]
    chooses_victims: ClassVar[bool]
    needs: ClassVar[Mapping[str, object]]
    finds_verified: bool
    never_recomputes: bool
    pads: bool
    order: QueueOrder
    preemption: Preemption

    def __init__(self, order: QueueOrder, preemption: Preemption, options: Any) -> None: ...

    def make_queue(self) -> WaitingQueue:
        """An empty waiting queue; the scheduler asks once."""

    def admit(self, need: Need, state: AdmissionState) -> Admit | Wait:
        """Whether the head of the queue may enter a step, with how many tokens; or until when it waits.

        It is asked when a step is planned, and then whether the head could enter the step after it. While it could not,
        decode steps run on without being planned one by one.
        """

    def compose(self, planner: StepPlanner, draft: StepDraft) -> None:
        """Fill `draft` with the next step, using the planner's building blocks. An empty draft means wait."""


class BasePolicy:
    """Chunked prefill: all decodes, then prompt chunks in what the token budget leaves.

    It keeps order and preemption, and admits sequences that have a seat, tokens and blocks, unless the step preempts.
    """

    options_type: ClassVar[type[Any]] = NoOptions
    chooses_victims: ClassVar[bool] = False
    needs: ClassVar[Mapping[str, object]] = {}
    finds_verified: bool = False
    never_recomputes: bool = False
    pads: bool = False

    def __init__(self, order: QueueOrder, preemption: Preemption, options: Any) -> None:
        self.order = order
        self.preemption = preemption

    def make_queue(self) -> WaitingQueue:
        return WaitingQueue(self.order)

    def admit(self, need: Need, state: AdmissionState) -> Admit | Wait:
        return admit_what_fits(need, state)

    def compose(self, planner: StepPlanner, draft: StepDraft) -> None:
        planner.decode_and_prefill(draft)


def nanoseconds(seconds: float) -> int:
    """Settings are in seconds; the times that a scheduler is given are in ns."""
    return round(seconds * 1e9)
