"""Scheduling policies: what goes into a step, and whom to preempt. A new idea is one more class here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from engine.sequence import Sequence

if TYPE_CHECKING:
    from engine.scheduler import Scheduler, StepDraft


class Policy(Protocol):
    def compose(self, scheduler: Scheduler, draft: StepDraft) -> None:
        """Fill `draft` with the next step, using the scheduler's building blocks."""

    def victim(self, running: Iterable[Sequence], spared: Sequence | None) -> Sequence:
        """Choose whom to preempt among the running sequences, given last admitted first; `spared` was the last one."""


def last_admitted(running: Iterable[Sequence], spared: Sequence | None) -> Sequence:
    """Of the least urgent, the last admitted; `spared` only if there is no other.

    So whoever gave way last and came back is not the next victim.
    """
    return min(running, key=lambda sequence: (-sequence.priority, sequence is spared))


class PrefillFirst:
    """A step is all prefill or all decode, and prompts go first. Only the first prompt of a step is ever cut."""

    def compose(self, scheduler: Scheduler, draft: StepDraft) -> None:
        budget = scheduler.continue_prefills(draft, scheduler.max_num_batched_tokens)
        scheduler.admit(draft, budget, cut_any=False)
        if not draft.prefills:
            scheduler.decode(draft)

    def victim(self, running: Iterable[Sequence], spared: Sequence | None) -> Sequence:
        return last_admitted(running, spared)


class Mixed:
    """All decodes, then prompt chunks in what the token budget leaves; nobody is admitted in a step that preempts."""

    def compose(self, scheduler: Scheduler, draft: StepDraft) -> None:
        scheduler.decode(draft)
        budget = scheduler.continue_prefills(draft, scheduler.max_num_batched_tokens - draft.num_decodes)
        if not draft.preempted:
            scheduler.admit(draft, budget, cut_any=True)

    def victim(self, running: Iterable[Sequence], spared: Sequence | None) -> Sequence:
        return last_admitted(running, spared)


POLICIES: dict[str, type[Policy]] = {"prefill_first": PrefillFirst, "mixed": Mixed}
