"""Copies between device and host, and what is known of the sequences that they are for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from engine.core.sequence import Sequence


class Job(NamedTuple):
    """Copies between device and host.

    Attributes:
        number: names the job.
        asked_at: when the step was planned that asked for it.
        chunks: their hashes.
        blocks: of the device, `chunk_blocks` for each chunk; fewer for a load of which the device has the first.
        places: on the host, one for each chunk.
    """

    number: int
    asked_at: int
    sequence: Sequence
    is_store: bool
    chunks: list[int]
    blocks: list[int]
    places: list[int]


class Orders(NamedTuple):
    """What the planned step asks of who copies.

    Attributes:
        flushed: numbers of jobs that the step waits for.
        ended: sequences of which nothing more is to be stored.
    """

    jobs: list[Job]
    flushed: set[int]
    ended: list[Sequence]


@dataclass
class SequenceState:
    """What the connector knows of a sequence.

    Attributes:
        next_chunk: the first that was not offered to the host yet.
        num_blocks: of its block table, when it was last in a step.
        table: its block table then, noted when it gave way or ended.
        jobs: that are under way.
        has_stored: whether it ever had a store job.
        is_told: it has ended, and the step after that is planned.
        is_known: and that has run.
        written: what its store jobs write, or have written, that cannot be found yet.
    """

    next_chunk: int = 0
    num_blocks: int = 0
    table: list[int] = field(default_factory=list)
    jobs: dict[int, Job] = field(default_factory=dict)
    has_stored: bool = False
    is_told: bool = False
    is_known: bool = False
    written: dict[int, None] = field(default_factory=dict)
