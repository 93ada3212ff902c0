"""What is told of all that happens to a server."""

from __future__ import annotations

from typing import Protocol

from engine.core.plan import StepOutcome, StepPlan
from engine.core.sequence import Request
from simulator.decode_run import Durations


class Observer(Protocol):
    """Sees all that happens to a server, whichever engine serves it."""

    def on_refused(self, request: Request, reason: str) -> None: ...

    def on_transfers(self, plan: StepPlan, wait_ns: int) -> None:
        """A plan that runs next waits for its transfers first; not called of a plan without any."""

    def on_step(self, plan: StepPlan, start_ns: int, durations_ns: Durations | int) -> None:
        """A plan ran from `start_ns` on; one duration per step, a bare number for a single one."""

    def on_commit(self, outcome: StepOutcome) -> None: ...
