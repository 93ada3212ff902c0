"""One server without others: its waits follow one another, so time just adds up, without a queue of events."""

from __future__ import annotations

from engine.core.plan import StepPlan
from simulator.arrivals import NEVER
from simulator.replica import Replica


def run_alone(replica: Replica) -> int:
    """Serve what the replica's source brings until nothing is left or it is stopped; returns the time then, in ns.

    The replica lives through the same times as beside others (`simulator.drivers.shared`).
    """
    now = 0
    plan: StepPlan | None = None  # made ahead
    while not replica.is_stopping:
        plan = plan or replica.plan(now)
        if plan is None:
            wake_at = replica.wake_ns()
            if wake_at == NEVER:
                break
            assert wake_at >= now, "time does not run back"
            now = wake_at
            continue
        plan, now = replica.finish(plan, now, replica.price(plan, now))
    return now
