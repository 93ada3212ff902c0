"""Copies between device and host, from when they are asked for until they are done."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.core.sequence import Sequence


class Job(NamedTuple):
    """Copies between device and host.

    Attributes:
        number: names the job.
        chunks: their hashes.
        blocks: of the device, `chunk_blocks` for each chunk; fewer for a load of which the device has the first.
        places: on the host, one for each chunk.
    """

    number: int
    sequence: Sequence
    is_store: bool
    chunks: list[int]
    blocks: list[int]
    places: list[int]


class Orders(NamedTuple):
    """What the planned step asks of who copies.

    Attributes:
        flushed: numbers of jobs that the step waits for.
        ended: sequences that have ended, of which nothing more is to be stored.
    """

    jobs: list[Job]
    flushed: set[int]
    ended: list[Sequence]


class Jobs:
    """The jobs of a connector that are not done, and the orders that nobody has taken yet.

    Attributes:
        now: when the last step was planned, or could not be.
        under_way: all that are not done, by their numbers.
        allocated: blocks that the planned step has given out.
    """

    def __init__(self) -> None:
        self.now = 0
        self.under_way: dict[int, Job] = {}
        self.allocated: set[int] = set()
        self._num_started = 0
        self._orders = Orders([], set(), [])
        self._unplanned: list[Job] = []

    def start(
        self, sequence: Sequence, chunks: list[int], blocks: list[int], places: list[int], *, is_store: bool
    ) -> Job:
        """Ask for copies between the host's `places` and the device's `blocks`."""
        self._num_started += 1
        job = Job(self._num_started, sequence, is_store, chunks, blocks, places)
        self.under_way[job.number] = job
        self._orders.jobs.append(job)
        self._unplanned.append(job)
        return job

    def pop_unplanned(self) -> list[Job]:
        """The jobs that no plan tells of yet."""
        jobs, self._unplanned = self._unplanned, []
        return jobs

    def flush(self, numbers: abc.Iterable[int]) -> None:
        """Let the planned step wait for these jobs."""
        self._orders.flushed.update(numbers)

    def end_sequence(self, sequence: Sequence) -> None:
        """Nothing more is to be stored of a sequence."""
        self._orders.ended.append(sequence)

    def take_orders(self) -> Orders:
        """What was asked for since this was called last."""
        orders, self._orders = self._orders, Orders([], set(), [])
        return orders


@dataclass
class SequenceState:
    """What the connector knows of a sequence.

    Attributes:
        next_chunk: the first that was not offered to the host yet.
        num_blocks: of its block table, when it was last in a step.
        table: its block table then, noted when it gave way or ended.
        jobs: numbers of those that are under way.
        has_stored: with `OffloadingRules.by_request`, whether it ever had a store job.
        unfindable: likewise, chunks that its store jobs write, or have written, and that cannot be found yet.
        is_told: whether it has ended, and orders have told so.
        is_known: whether the step of these orders has run.
    """

    next_chunk: int = 0
    num_blocks: int = 0
    table: list[int] = field(default_factory=list)
    jobs: set[int] = field(default_factory=set)
    has_stored: bool = False
    unfindable: dict[int, None] = field(default_factory=dict)
    is_told: bool = False
    is_known: bool = False

    @property
    def is_over(self) -> bool:
        """Whether nothing is to be done any more for the sequence."""
        return self.is_told and not self.jobs and not self.has_stored
