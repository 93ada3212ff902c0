"""A clock that servers share, for processes of SimPy and for what is not worth one."""

from __future__ import annotations

import simpy

from simulator.arrivals import NEVER
from simulator.drivers.phases import PLANS
from simulator.drivers.timetable import Timetable


class Clock(simpy.Environment):
    """SimPy's environment, with a timetable of all that happens in it."""

    def __init__(self) -> None:
        super().__init__()
        self.timetable = Timetable(self)

    def run(self, until: None = None) -> None:
        """All events in order until none is left."""
        self.timetable.run()


class Phase(simpy.Event):
    """An event in a phase of this time, for processes."""

    def __init__(self, env: simpy.Environment, phase: int) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        env.schedule(self, phase)


class Sleep:
    """What the process of a driver waits for: to plan, or that something changes after there was nothing to plan."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._woken = env.event()

    def wake(self) -> None:
        if not self._woken.triggered:
            self._woken.succeed()

    def to_plan(self) -> simpy.Event:
        """When servers plan at this time; a `wake` from now on ends the next sleep."""
        self._woken = self._env.event()
        return Phase(self._env, PLANS)

    def until(self, wake_at: int) -> simpy.Event:
        """That time, or NEVER, or `wake` before it."""
        return self._woken if wake_at == NEVER else self._woken | self._env.timeout(wake_at - self._env.now)
