"""Scheduling policies: what goes into a step, and whom to preempt. A new idea is one more class or function here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from engine.core.sequence import Sequence

if TYPE_CHECKING:
    from engine.core.plan import StepDraft
    from engine.core.step_planner import StepPlanner

VictimRule = Callable[[Iterable[Sequence], Sequence | None], Sequence]
"""Chooses whom to preempt among running sequences, given last admitted first; the second argument was the last one."""


def spare_last(running: Iterable[Sequence], spared: Sequence | None) -> Sequence:
    """Of the least urgent, the last admitted; `spared` only if there is no other.

    So whoever gave way last and came back is not the next victim.
    """
    return min(running, key=lambda sequence: (-sequence.priority, sequence is spared))


def last_admitted(running: Iterable[Sequence], spared: Sequence | None) -> Sequence:
    """The last admitted, whoever it is."""
    return next(iter(running))


VICTIM_RULES: dict[str, VictimRule] = {"spare_last": spare_last, "last": last_admitted}


class Policy(Protocol):
    @property
    def victim(self) -> VictimRule: ...

    def compose(self, planner: StepPlanner, draft: StepDraft) -> None:
        """Fill `draft` with the next step, using the planner's building blocks."""


class PrefillFirst:
    """A step is all prefill or all decode, and prompts go first. Only the first prompt of a step is ever cut."""

    def __init__(self, victim: VictimRule = spare_last) -> None:
        self.victim = victim

    def compose(self, planner: StepPlanner, draft: StepDraft) -> None:
        budget = planner.continue_prefills(draft, planner.max_num_batched_tokens)
        if not draft.is_starved:
            planner.admit(draft, budget, cut_any=False)
        if not draft.prefills:
            planner.decode(draft)


class Mixed:
    """All decodes, then prompt chunks in what the token budget leaves; nobody is admitted in a step that preempts."""

    def __init__(self, victim: VictimRule = spare_last) -> None:
        self.victim = victim

    def compose(self, planner: StepPlanner, draft: StepDraft) -> None:
        planner.decode(draft)
        budget = planner.continue_prefills(draft, planner.max_num_batched_tokens - draft.num_decodes)
        if not draft.is_starved:
            planner.admit(draft, budget, cut_any=True)


POLICIES: dict[str, type[PrefillFirst] | type[Mixed]] = {"prefill_first": PrefillFirst, "mixed": Mixed}
