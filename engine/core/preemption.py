"""Preemption: which running sequence gives way when blocks run out, and what it keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from engine.core.sequence import Sequence

VictimRule = Callable[[Iterable[Sequence], Sequence | None], Sequence]
"""Chooses whom to preempt among running sequences, given last admitted first; the second argument was the last one."""

Keeps = Literal["nothing", "host_copy"]


def spare_last(running: Iterable[Sequence], spared: Sequence | None) -> Sequence:
    """Of the least urgent, the last admitted; `spared` only if there is no other.

    So a sequence that gave way and came back is not the next victim.
    """
    return min(running, key=lambda sequence: (-sequence.request.priority, sequence is spared))


def last_admitted(running: Iterable[Sequence], spared: Sequence | None) -> Sequence:
    """The last admitted, even if it was the last victim."""
    return next(iter(running))


def least_urgent(running: Iterable[Sequence], spared: Sequence | None) -> Sequence:
    """The least urgent, and among equals the one that arrived last, as vLLM's priority scheduling has it."""
    return max(running, key=lambda sequence: (sequence.request.priority, sequence.request.order))


VICTIM_RULES: dict[str, VictimRule] = {"spare_last": spare_last, "last": last_admitted, "least_urgent": least_urgent}


class Preemption(NamedTuple):
    """`victim` chooses who gives way; it keeps "nothing" and computes all again, or a "host_copy" of its blocks, if the
    host tier has room."""

    victim: VictimRule = spare_last
    keeps: Keeps = "nothing"
