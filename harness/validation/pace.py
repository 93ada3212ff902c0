"""The pace of a server over time, which on a shared machine is not that of a simulation.

Between the slices of a held-out load are slices of fitted ones: how long their decodes took beside a simulation says
how slow the machine was then. A server that takes p times as long for all that it does is a server of one pace whose
clock runs p times as fast, so requests are simulated at the times of that clock, and what comes of them is told in s.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from harness.measured.measured_run import TIMES, with_latencies
from harness.results.tables import Floats

_GRID = 4096  # points at which the time of the other clock is summed up
_FOREVER_S = 1e9


class Pace(NamedTuple):
    """How many times as long as in the mean all takes: `slowness` at `times` (s, ascending), linear between them."""

    times: Floats
    slowness: Floats

    def to_server(self, times: Floats) -> Floats:
        """Times in s on the clock of a server of one pace."""
        clock, server = self._clocks()
        return np.interp(times, clock, server)

    def to_clock(self, times: Floats) -> Floats:
        """The inverse of `to_server`."""
        clock, server = self._clocks()
        return np.interp(times, server, clock)

    def _clocks(self) -> tuple[Floats, Floats]:
        clock = np.append(np.linspace(0.0, self.times[-1], _GRID), _FOREVER_S)
        middles = (clock[1:] + clock[:-1]) / 2
        passed = np.diff(clock) / np.interp(middles, self.times, self.slowness)
        return clock, np.append(0.0, np.cumsum(passed))

    def after(self, measured: pd.DataFrame, simulated: pd.DataFrame) -> Pace:
        """The pace by which slices took as long as `measured`, where they were `simulated` at this one.

        The tables have the same requests in the same order.
        """
        one, other = ((each["finish_time"] - each["first_token_time"]).to_numpy() for each in (measured, simulated))
        arrivals = measured["arrival_time"].to_numpy()
        slices = measured.groupby("slice").indices.values()
        found = [(arrivals[rows].mean(), one[rows].sum(), other[rows].sum()) for rows in slices]
        times, took, expected = np.array([each for each in found if min(each[1:]) > 0]).reshape(-1, 3).T
        if not len(times):
            return self
        slowness = took / expected * np.interp(times, self.times, self.slowness)
        return Pace(times, slowness / np.exp(np.log(slowness).mean()))

    def timed(self, requests: pd.DataFrame, latency_from: str) -> pd.DataFrame:
        """Requests that were simulated on the server's clock, in s."""
        times = {name: self.to_clock(requests[name].to_numpy(dtype=np.float64)) for name in TIMES}
        return with_latencies(requests.assign(**times), latency_from)


STEADY = Pace(np.array([1.0]), np.array([1.0]))
