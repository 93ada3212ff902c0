"""Systems of known capacity, which stand in for runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.special import expit

from harness.studies.capacity.load_search import Ask
from harness.studies.capacity.probe import Probe

ROOM = 0.01


def probe(load: float, share: float, number: int = 0, num_requests: int = 1000, *, overloaded: bool = False) -> Probe:
    return Probe(
        load=load,
        seed=number,
        num_requests=num_requests,
        folder=f"{load:g}-seed{number}",
        share=share,
        beyond={"ttft": share},
        latencies_ms={"ttft": 500 * share / ROOM},
        verdict="overloaded" if overloaded else "stable",
        guess=0.0,
        output_throughput=200 * load,
        tokens_per_request=200.0,
        median_tpot_ms=20.0,
        busy=1.0,
        num_gpus=1,
    )


@dataclass
class World:
    """Shares beyond the limit are logistic in the logarithm of the load, and each run has a load of its own.

    Attributes:
        noise: standard deviation of the logarithm of the load that a run of 20,000 requests draws.
        full: load above which runs are overloaded.
    """

    capacity: float
    slope: float = 60.0
    noise: float = 0.012
    floor: float = 0.0005
    full: float = math.inf
    is_whole: bool = False
    asked: list[Ask] = field(default_factory=list)

    def run(self, asks: Sequence[Ask]) -> list[Probe]:
        self.asked += asks
        return [self._run(ask) for ask in asks]

    def _run(self, ask: Ask) -> Probe:
        rng = np.random.default_rng([ask.number, round(1e6 * self.capacity)])
        noise = self.noise * math.sqrt(20_000 / ask.num_requests)
        load = float(max(1, int(ask.load))) if self.is_whole else ask.load
        # lognormal shares, whose mean is the room at the capacity
        odds = math.log((ROOM - self.floor) / (1 - ROOM + self.floor))
        odds += self.slope * (math.log(load / self.capacity) + noise * rng.normal())
        share = min(1.0, self.floor + float(expit(odds - (self.slope * noise) ** 2 / 2)))
        return probe(load, share, ask.number, ask.num_requests, overloaded=load > self.full)
