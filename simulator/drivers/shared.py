"""A server beside others: a process of SimPy, which a request that arrives can interrupt."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from typing import Any

import simpy

from engine.core.plan import StepPlan
from simulator.arrivals import NEVER
from simulator.drivers.phases import PLANS, Phase
from simulator.replica import Replica, Run

_FEWEST = 8  # steps that are worth the price of a run which a request may cut


class Shared:
    """Runs a replica in an environment, until nothing is left or it is stopped."""

    def __init__(self, env: simpy.Environment, replica: Replica) -> None:
        self._env = env
        self._replica = replica
        self._num_quiet_steps = 0  # since the last request came: about as many are likely to follow
        self._can_wake = False  # it waits for something that a new request would change
        self._process = env.process(self._serve())
        replica.on_submit = self._wake

    def _wake(self) -> None:
        self._num_quiet_steps = 0
        if self._can_wake:
            self._can_wake = False
            self._process.interrupt()

    def _serve(self) -> Generator[Any, Any, None]:
        env, replica = self._env, self._replica
        plan: StepPlan | None = None  # made ahead
        while not replica.is_stopping:
            if plan is None:
                if env.peek() == env.now:
                    yield Phase(env, PLANS)
                plan = replica.plan(env.now)
            if plan is None:
                yield from self._idle(replica.wake_ns())
                continue
            now = env.now
            replica.reach = self._num_quiet_steps if self._num_quiet_steps >= _FEWEST else 1
            price = replica.price(plan, now)
            num_steps = 1
            if isinstance(price, int):
                yield env.timeout(price)
            else:
                num_steps = yield from self._run(now, price)
            self._num_quiet_steps += num_steps
            plan, _ = replica.finish(plan, now, price, num_steps)

    def _idle(self, until: int) -> Generator[Any, Any, None]:
        self._can_wake = True
        with suppress(simpy.Interrupt):
            yield self._env.event() if until == NEVER else self._env.timeout(until - self._env.now)
        self._can_wake = False

    def _run(self, start: int, run: Run) -> Generator[Any, Any, int]:
        """Let steps pass; returns how many do before a request is seen that comes meanwhile."""
        env, (_, ends) = self._env, run
        num_steps = len(ends)
        self._can_wake = self._replica.compress
        try:
            yield env.timeout(ends.item(-1))
        except simpy.Interrupt:  # later ones are seen with this one, or after it
            num_steps = self._replica.steps_until_event(start, ends)
            yield env.timeout(start + ends.item(num_steps - 1) - env.now)
        self._can_wake = False
        return num_steps
