"""What a scheduler decided, step by step, in a form that schedulers can be compared by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Protocol

from experiments.oracles.cases import Case, Request

MOST_STEPS = 10_000
MOST_EMPTY_STEPS = 200  # one after the other; a transfer takes fewer


class EndlessError(RuntimeError):
    """A case is not over after `MOST_STEPS` steps that compute something, or computes nothing for ever.

    Attributes:
        steps: those before.
    """

    def __init__(self, steps: list[Step]) -> None:
        super().__init__(f"not over after {len(steps)} steps")
        self.steps = steps


@dataclass
class Step:
    """One planned step.

    Attributes:
        computed: for each request in the step, the position of its first token and how many it computes. For an
            admitted request the position is the number of its cached tokens.
        admitted: who left the queue, in order.
        preempted: who lost its blocks and will compute them again.
        finished: who got its last token in this step.
        transfers: that the step asks for between device and host: of which request, whether it stores, and the
            places on the host.
        num_running, num_waiting, num_used_blocks: after the step was planned, and after all that ended before it
            was released.
    """

    computed: dict[int, tuple[int, int]]
    admitted: list[int]
    preempted: set[int]
    finished: set[int] = field(default_factory=set)
    transfers: list[tuple[int, bool, tuple[int, ...]]] = field(default_factory=list)
    num_running: int = 0
    num_waiting: int = 0
    num_used_blocks: int = 0


class Engine(Protocol):
    """A scheduler with all that it needs to run a case."""

    steps: list[Step]

    @property
    def is_idle(self) -> bool:
        """No request is left, and no step is under way."""

    def add(self, request: Request) -> None: ...

    def abort(self, request_id: int) -> None:
        """Abort a request; no effect if it is not there any more."""

    def step(self, most: int) -> None:
        """Plan and run one step, which may be empty, or up to `most` of them at once, and append them to `steps`."""


def run(engine: Engine, case: Case) -> list[Step]:
    """All steps of a case that compute something; raises EndlessError.

    Empty steps are left out, because a scheduler may as well plan again at once: their preemptions are reported with
    the next step, and they do not count for when requests arrive.
    """
    events, steps = case.events(), engine.steps
    unreported, num_empty = Step({}, [], set()), 0
    while len(steps) < MOST_STEPS:
        arrivals, aborts = events.pop(len(steps), ((), ()))
        if engine.is_idle and not arrivals:
            if not events:
                return steps
            arrivals, aborts = events.pop(min(events))
        for request in arrivals:
            engine.add(request)
        for request_id in aborts:
            engine.abort(request_id)
        number = len(steps)
        engine.step(min(events, default=MOST_STEPS) - number)
        if steps[number].computed:
            steps[number].preempted |= unreported.preempted
            steps[number].transfers[:0] = unreported.transfers
            unreported, num_empty = Step({}, [], set()), 0
        else:
            empty = steps.pop()
            num_empty += 1
            if num_empty > MOST_EMPTY_STEPS:
                break
            unreported.preempted |= empty.preempted
            unreported.transfers += empty.transfers
    raise EndlessError(steps)


def first_difference(expected: Iterable[Step], actual: Iterable[Step]) -> str | None:
    """Where and in what two runs differ first; None if they are equal."""
    expected, actual = list(expected), list(actual)
    for number, (one, other) in enumerate(zip(expected, actual, strict=False)):
        if one != other:
            names = [f.name for f in fields(Step) if getattr(one, f.name) != getattr(other, f.name)]
            return f"step {number}: {', '.join(names)}\n  expected {one}\n  actual   {other}"
    if len(expected) != len(actual):
        return f"{len(expected)} steps expected, {len(actual)} made"
    return None
