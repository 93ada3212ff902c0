"""A clock that servers share, for processes of SimPy and for what is not worth one."""

from __future__ import annotations

import simpy

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
