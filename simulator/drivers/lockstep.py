"""Servers that step together, as the ranks of a model with data-parallel attention do.

Attention is each rank's own, the experts are shared out: every layer exchanges tokens between all ranks. So the slowest
rank sets the pace of all, what they share is added, and a rank with nothing to compute runs a dummy step of one token
beside the others.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import simpy

from engine.core.plan import StepPlan
from engine.core.work import StepWork
from simulator.drivers.clock import Sleep
from simulator.replica import Replica

_DUMMY = StepWork((), 1, 1, 1)


Shared = Callable[[Sequence[int]], int]
"""ns of what all ranks do together, given the tokens of each."""


class Ranks(NamedTuple):
    """`number` servers of a fleet, from the one with the number `first` on, that step together."""

    first: int
    number: int
    shared_ns: Shared


class Lockstep:
    """Runs replicas in an environment, one step of all after the other.

    Args:
        shared_ns: what is added to the time of the slowest rank.

    Raises:
        ValueError: a replica compresses runs of steps or has plans of several: the others would not be asked in
            between.
    """

    def __init__(self, env: simpy.Environment, replicas: Sequence[Replica], shared_ns: Shared) -> None:
        if any(each.compress or (each.plans_several and not each.scheduler.plans_ahead) for each in replicas):
            raise ValueError("in lockstep each step is planned on its own")
        self._env = env
        self._replicas = replicas
        self._shared_ns = shared_ns
        self._sleep = Sleep(env)
        env.process(self._serve())
        for replica in replicas:
            replica.on_change = self._sleep.wake

    def _serve(self) -> Generator[Any, Any, None]:
        replicas = self._replicas
        plans: list[StepPlan | None] = [None] * len(replicas)  # made ahead
        while not any(replica.is_stopping for replica in replicas):
            yield self._sleep.to_plan()
            now = self._env.now
            plans = [plan or replica.plan(now) for plan, replica in zip(plans, replicas, strict=True)]
            if not any(plans):
                yield self._sleep.until(min(replica.wake_ns() for replica in replicas))
                continue
            pace = self._pace(plans, now)
            yield self._env.timeout(pace)
            pairs = zip(replicas, plans, strict=True)
            plans = [plan and replica.finish(plan, now, pace)[0] for replica, plan in pairs]

    def _pace(self, plans: Sequence[StepPlan | None], now: int) -> int:
        """What the step of all ranks takes; of plans that only wait for transfers, as long as these."""
        num_tokens = [plan.work.num_tokens if plan else 0 for plan in plans]
        runs, pace = any(num_tokens), 0
        for replica, plan, tokens in zip(self._replicas, plans, num_tokens, strict=True):
            price = replica.price(plan, now) if plan else 0
            assert isinstance(price, int), "plans are of one step"
            if runs and not tokens:
                price = max(price, replica.cost_model.step_ns(_DUMMY))
            pace = max(pace, price)
        return pace + self._shared_ns([max(1, tokens) for tokens in num_tokens]) if runs else pace
