"""Queues of fleets against closed forms: servers that serve one request at a time, for a time that is exponential.

random: each server has a queue of its own, of the mean length of Pollaczek and Khinchine.
least_requests: two servers have longer queues than an M/M/2 queue, and much shorter ones than queues of their own.
power_of_two: of many servers a share rho^(2^i - 1) has at least i requests (Mitzenmacher 2001).
"""

from __future__ import annotations

import numpy as np
import pytest

from engine.core.planning.policy_options import read_options
from engine.core.routing import find_router
from harness.workload.arrivals import OpenLoop
from tests.simulator.replicas import FlatCost, make, simulate
from tests.simulator.workloads import simple_trace

pytestmark = pytest.mark.slow  # a minute

STEP_NS, MEAN_TOKENS = 1000, 50
LOAD = 0.8


def mean_number(rule: str, num_servers: int, num_requests: int) -> tuple[float, float]:
    """Requests per server, the one that is served included; and what Pollaczek and Khinchine expect of a queue of its
    own at each server."""
    rng = np.random.default_rng(1)
    outputs = np.ceil(rng.exponential(MEAN_TOKENS, num_requests)).astype(int)
    service = outputs * STEP_NS
    gap_ns = service.mean() / LOAD / num_servers
    times = np.cumsum(rng.exponential(gap_ns, num_requests)).astype(np.int64)
    router = find_router(rule)
    assert router is not None
    runs = simulate(
        simple_trace([1] * num_requests, outputs.tolist()),
        OpenLoop(times),
        [make(1) for _ in range(num_servers)],
        FlatCost(STEP_NS),
        rule=router(read_options(router.options_type, {}, rule)),
    )
    finish = np.nanmax([run.requests["finish_time"] for run in runs], axis=0)
    stay_ns = finish * 1e9 - times
    warm = slice(num_requests // 10, None)
    rate = LOAD / service.mean()  # per server
    expected = LOAD + rate**2 * np.mean(service.astype(float) ** 2) / 2 / (1 - LOAD)
    return float(stay_ns[warm].mean() * rate), float(expected)


@pytest.mark.parametrize("num_servers", [1, 3])
def test_servers_that_are_drawn_are_queues_of_their_own(num_servers: int) -> None:
    found, expected = mean_number("random", num_servers, 12_000 * num_servers)
    assert found == pytest.approx(expected, rel=0.12)


def test_of_two_that_are_drawn_the_shorter_queue_is_nearly_as_short_as_theory_has_it() -> None:
    found, alone = mean_number("power_of_two", 20, 60_000)
    expected = sum(LOAD ** (2**i - 1) for i in range(1, 12))
    assert found == pytest.approx(expected, rel=0.08) and found < alone / 2


def test_the_shorter_of_two_queues_is_between_one_queue_for_both_and_two_of_their_own() -> None:
    found, alone = mean_number("least_requests", 2, 30_000)
    together = LOAD / (1 - LOAD**2)  # of an M/M/2 queue, per server
    assert together < found < alone / 1.5
    assert found == pytest.approx(together, rel=0.2)
