"""What theory says of queues that a short run has not seen, held against single-server queues with a known answer."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from harness.results.statistics.latencies import latencies
from harness.results.statistics.queue_noise import NO_QUEUE, queue_noise
from harness.results.tables import Floats, Gaps

_NO_GAPS = Gaps(np.zeros(0), np.zeros(0, dtype=np.int64))


def single_server(rng: np.random.Generator, num_requests: int, load: float) -> pd.DataFrame:
    """Requests of an M/M/1 queue whose services take 1 s in the mean; the wait is that of Lindley's recursion."""
    between, service = rng.exponential(1 / load, num_requests), rng.exponential(1.0, num_requests)
    walk = np.concatenate([[0.0], np.cumsum(service[:-1] - between[1:])])
    wait = walk - np.minimum.accumulate(walk)
    arrival = np.cumsum(between)
    return pd.DataFrame(
        {"arrival_time": arrival, "queue_time": wait, "ttft": wait + 0.1, "tpot": service / 10, "e2el": wait + service}
    )


@pytest.mark.parametrize("num_requests", [500, 2000, 8000])
def test_intervals_hold_the_wait_of_a_long_run(num_requests: int) -> None:
    """The mean wait of M/M/1 is load / (1 - load), and P(wait > x) = load exp(-(1 - load) x). Without the theory the
    intervals of p99 hold it in two thirds of runs with 2,000 requests."""
    load, rng, hits = 0.8, np.random.default_rng(3), []
    truth = {"mean": load / (1 - load) + 0.1, "p99": math.log(load / 0.01) / (1 - load) + 0.1}
    for _ in range(60):
        found = latencies(single_server(rng, num_requests, load), _NO_GAPS, [99], load)
        ends = {name: (found[f"{name}_ttft_ms_low"] / 1e3, found[f"{name}_ttft_ms_high"] / 1e3) for name in truth}
        hits.append([not (ends[name][0] > value or ends[name][1] < value) for name, value in truth.items()])
    assert (np.mean(hits, axis=0) >= 0.9).all(), np.mean(hits, axis=0)


def test_a_low_load_has_no_queue_to_miss() -> None:
    """100 served at once with half of the capacity spare: intervals are as narrow as their batches tell."""
    rng = np.random.default_rng(0)
    noise = queue_noise(0.5, np.cumsum(rng.exponential(1.0, 2000)), rng.exponential(50.0, 2000))
    assert noise.share < 1e-5 and noise.of_share(0.99, 2000) < 1e-3 and noise.of_mean(2000) < 1e-2


def test_the_noise_grows_towards_capacity_and_shrinks_with_the_run() -> None:
    rng = np.random.default_rng(0)
    arrival, service = np.cumsum(rng.exponential(1.0, 2000)), rng.exponential(8.0, 2000)
    noises = [queue_noise(load, arrival, service) for load in (0.3, 0.6, 0.8, 0.9, 0.99, 1.0)]
    for part in ("share", "wait_s", "memory_requests"):
        values = [getattr(noise, part) for noise in noises]
        assert values == sorted(values), part
    assert noises[2].of_mean(8000) == pytest.approx(noises[2].of_mean(2000) / 2)
    assert noises[2].of_share(0.9, 8000) == pytest.approx(noises[2].of_share(0.9, 2000) / 2)


def test_at_capacity_no_upper_end_is_known() -> None:
    requests = single_server(np.random.default_rng(1), 4000, 0.8)
    for load in (1.0, 1.3):
        found = latencies(requests, _NO_GAPS, [99], load)
        assert math.isnan(found["mean_ttft_ms_high"]) and math.isnan(found["p99_ttft_ms_high"])
        assert not math.isnan(found["mean_tpot_ms_high"]), "decodes do not wait in the queue"


def test_a_closed_loop_has_no_queue_of_its_own() -> None:
    times: Floats = np.arange(100.0)
    assert queue_noise(math.nan, times, times + 1) == NO_QUEUE
    assert queue_noise(0.8, np.zeros(100), times) == NO_QUEUE
    assert NO_QUEUE.of_mean(10) == NO_QUEUE.of_share(0.5, 10) == 0
