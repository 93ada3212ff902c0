"""The time of a replica that is alone: without the events that several processes of SimPy need to take turns."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol

Waits = Generator[Any, Any, None]
"""A process: it yields what it waits for."""


class Environment(Protocol):
    """What a replica needs of `simpy.Environment`; times are ns."""

    @property
    def now(self) -> Any: ...

    def process(self, generator: Waits) -> Any: ...

    def timeout(self, delay: int) -> Any: ...

    def event(self) -> Any: ...

    def peek(self) -> float: ...


class LoneEnvironment:
    """An environment with one process, which nothing interrupts: its waits follow one another, so time just adds up.

    The process lives through the same times as in a `simpy.Environment`, whose queue takes longer than many a plan.
    """

    def __init__(self) -> None:
        self.now = 0
        self._process: Waits | None = None

    def process(self, generator: Waits) -> None:
        assert self._process is None, "there is one process"
        self._process = generator

    def timeout(self, delay: int) -> int:
        return delay

    def event(self) -> None:
        """What nobody will ever trigger."""

    def peek(self) -> float:
        """Nothing else is to happen."""
        return float("inf")

    def run(self) -> None:
        """Run the process to its end, or until it waits for an event."""
        assert self._process is not None
        for delay in self._process:
            if delay is None:
                return
            self.now += delay
