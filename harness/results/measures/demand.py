"""How much of the system's capacity the offered load takes, estimated from the steps of one run.

Capacity is the largest rate at which the queue of a long run stays bounded. With more requests at hand than fit, every
step is as full as seats and memory allow; requests/s are then the most that there can be. A run below capacity never
shows this, and a short one above it may not reach it: 500 requests at 1.1 of capacity and 512 seats leave every queue
empty. But the steps of any run tell what a step takes, and so what a request would take in full steps:

    duration of a step  = a + b · prompt tokens + c · decodes + d · context tokens        (least squares, none < 0)
    time of a request   = a · steps + b · prompt tokens + c · decode tokens + d · their contexts
    steps of a request  = decode tokens / decodes of a full step + its share of steps without decodes
    load                = rate · time of a request

Decodes of a full step are those of steps in which enough requests were left waiting to take all free room, and without
any as many as the seats and the KV pool can hold. Of requests and arrivals that are drawn, the rate and the mean
lengths of the distributions count, since those of 500 draws are off by several percent.

Each server of a fleet, and each lane of a pipeline, is taken to get an equal share of the rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations

import numpy as np

from harness.results.columns import floats, nan_max, nan_min, ratio
from harness.results.measures.servers import overlap_free
from harness.results.tables import Floats, Rows, RunResult, percentiles_of
from harness.workload.expectation import length_means

_POOL_USE = 0.95  # share of a scarce pool that can be used: the rest is too small for the next request
_SURE = 0.5  # share of the arrival window with requests waiting from which on full steps are known from it alone


def offered_load(result: RunResult, requests: Rows, rate: float, prefill_share: float = 1.0) -> float:
    """The offered load as a share of capacity, at `rate` requests/s; NaN for a run without steps or requests.

    requests: those that count. The run's `meta` may have the configuration, and mean lengths of the distributions that
    the requests were drawn from (`expected_lengths`). prefill_share: prompt tokens that the requests of a long run have
    to compute, as a share of those of this one, whose first requests meet colder caches.
    """
    steps = result.step_rows
    arrival = floats(requests, "arrival_time")
    inside = floats(steps, "start_time") < nan_max(arrival)
    if not inside.any() or not len(requests) or result.are_steps_sampled:
        return math.nan
    counts = np.stack([np.ones(len(steps)), *(floats(steps, name) for name in _COUNTS)], axis=1)
    decodes, durations = counts[:, _DECODES], _busy_time(steps)
    times, factors = _fit(counts, durations), _of_distribution(result)
    most, growth = _most_decodes(result, durations, factors)
    waiting = floats(steps, "num_waiting")
    full = inside & (waiting > 0) & (waiting >= most - floats(steps, "num_running") / result.num_lanes)
    share = ratio(durations[full].sum(), result.num_tracks * (nan_max(arrival) - nan_min(arrival)))
    if (seen := full & (decodes > 0)).any():
        observed = ratio((decodes * durations)[seen].sum(), durations[seen].sum()) / growth
        sure = min(1.0, share / _SURE)
        most = 1 / (sure / observed + (1 - sure) / most)
    # the steps most like full ones: the model's error there is the error of the load
    alike = full if share > 0.1 else inside & (decodes >= percentiles_of(decodes[inside], [80])[0])
    correction = ratio(durations[alike].sum(), counts[alike].sum(axis=0) @ times)
    of_request = counts.sum(axis=0) / len(result.request_rows) * factors
    of_request[_PREFILL] *= prefill_share
    of_request[0] = of_request[_DECODES] / most + prefill_share * (decodes == 0).sum() / len(result.request_rows)
    return float(rate / result.num_tracks * correction * (of_request @ times))


_COUNTS = ("num_prefill_tokens", "num_decode_seqs", "num_context_tokens")
_PREFILL, _DECODES, _CONTEXTS = 1, 2, 3  # columns of the counts


def _busy_time(steps: Rows) -> Floats:
    """Duration of each step, and on a real clock the host's time until the next one if the engine went right on."""
    busy = np.zeros(len(steps))
    all_starts, all_durations = floats(steps, "start_time"), floats(steps, "duration")
    for rows in overlap_free(steps):
        starts, durations = all_starts[rows], all_durations[rows]
        pause = np.append(starts[1:], math.inf) - (starts + durations)
        busy[rows] = durations + np.where((pause > 0) & (pause < durations / 2), pause, 0.0)
    return busy


def _fit(counts: Floats, durations: Floats) -> Floats:
    """The non-negative coefficients of the columns of `counts` with the least squared error of `durations`.

    A matrix product of all steps would depend, in its last digit, on how many threads share it.
    """
    scale = np.maximum(np.abs(counts).max(axis=0), 1e-300)
    columns = np.ascontiguousarray((counts / scale).T)
    products = np.array([(columns * column).sum(axis=1) for column in columns])
    target = (columns * durations).sum(axis=1)
    best, least = np.zeros(counts.shape[1]), math.inf
    for size in range(1, len(best) + 1):
        for chosen in map(list, combinations(range(len(best)), size)):
            part = np.linalg.lstsq(products[np.ix_(chosen, chosen)], target[chosen], rcond=None)[0]
            misfit = part @ products[np.ix_(chosen, chosen)] @ part - 2 * part @ target[chosen]
            if (part >= 0).all() and misfit < least:
                least, best = misfit, np.zeros(len(best))
                best[chosen] = part
    return best / scale


def _most_decodes(result: RunResult, durations: Floats, factors: Floats) -> tuple[float, float]:
    """Sequences that seats and KV pool can hold, and the factor by which those of the run are too short for that: 1
    where seats are the limit."""
    steps = result.step_rows
    lanes = result.num_lanes  # share the seats and the pool
    running, used = floats(steps, "num_running"), floats(steps, "num_used_blocks")
    # blocks of a running sequence grow with its context
    growth = factors[_CONTEXTS] / factors[_DECODES]
    blocks = ratio((used * durations).sum(), (running * durations).sum()) * growth
    in_pool = _POOL_USE * result.num_blocks / lanes / blocks if result.num_blocks and blocks > 0 else math.inf
    configured = (result.meta.get("config") or {}).get("max_num_seqs")
    seats = configured / lanes if isinstance(configured, int) else math.inf  # unknown of foreign results
    return (in_pool, growth) if in_pool < seats else (seats, 1.0)


def _of_distribution(result: RunResult) -> Floats:
    """Factors from the mean of the run's requests to that of the distribution they were drawn from, one per column of
    the counts; 1 for a trace from a file."""
    expected: Mapping[str, float] | None = result.meta.get("expected_lengths")
    if not expected:
        return np.ones(len(_COUNTS) + 1)
    requests = result.request_rows
    output = requests["num_requested_tokens"].to_numpy() // requests["num_sequences"].to_numpy()
    means = length_means(requests["num_prompt_tokens"].to_numpy(), output, expected["limit"])
    return np.array([1.0, *(ratio(expected[name], mean) if mean else 1.0 for name, mean in means.items())])
