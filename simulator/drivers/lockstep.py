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
from simulator.arrivals import NEVER
from simulator.drivers.clock import Phase
from simulator.drivers.phases import PLANS
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
        self._woken = env.event()
        env.process(self._serve())
        for replica in replicas:
            replica.on_change = self._wake

    def _wake(self) -> None:
        if not self._woken.triggered:
            self._woken.succeed()

    def _serve(self) -> Generator[Any, Any, None]:
        env, replicas = self._env, self._replicas
        ahead: list[StepPlan | None] = [None] * len(replicas)
        while not any(replica.is_stopping for replica in replicas):
            self._woken = env.event()
            yield Phase(env, PLANS)
            now = env.now
            plans = [made or replica.plan(now) for made, replica in zip(ahead, replicas, strict=True)]
            if not any(plans):
                wake_at = min(replica.wake_ns() for replica in replicas)
                yield self._woken if wake_at == NEVER else self._woken | env.timeout(wake_at - now)
                continue
            pace = self._pace(plans, now)
            yield env.timeout(pace)
            for rank, (replica, plan) in enumerate(zip(replicas, plans, strict=True)):
                ahead[rank] = replica.finish(plan, now, pace)[0] if plan is not None else None

    def _pace(self, plans: Sequence[StepPlan | None], now: int) -> int:
        """What the step of all ranks takes; of plans that only wait for transfers, as long as these."""
        pace, num_tokens = 0, []
        for replica, plan in zip(self._replicas, plans, strict=True):
            price = 0 if plan is None else replica.price(plan, now)
            assert isinstance(price, int), "plans are of one step"
            pace = max(pace, price)
            num_tokens.append(0 if plan is None else plan.work.num_tokens)
        if not any(num_tokens):
            return pace
        idle = (replica for replica, tokens in zip(self._replicas, num_tokens, strict=True) if not tokens)
        pace = max([pace, *(replica.cost_model.step_ns(_DUMMY) for replica in idle)])
        return pace + self._shared_ns([max(1, tokens) for tokens in num_tokens])
