"""What was asked of the system and what it served: rates over the time of arrivals, ramp-up and drain.

The arrival window is the time from the first to the last arrival that counts. After it the system drains: it serves
what is left at batches that become smaller and smaller, which says nothing about the load.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from harness.results.columns import floats, nan_max, nan_min, ratio
from harness.results.measures.servers import levels_of, step_integral
from harness.results.tables import Rows, RunResult

ALIKE = 0.02  # share by which throughputs differ at most where all keep up with the same arrivals


@dataclass(frozen=True)
class Load:
    """The load of a run.

    Attributes:
        offered_rate: requests/s that arrived over the arrival window.
        served_rate: requests/s that finished in it.
        window_output_throughput: output tokens/s generated in it.
        queue_growth: slope of the number of waiting requests over the window, by least squares, requests/s.
        arrival_window_s: its length.
        ramp_up_s: from its start until as many requests run as in the median over the window.
        drain_s: from the last arrival of the run to its last completion.
    """

    offered_rate: float
    served_rate: float
    window_output_throughput: float
    queue_growth: float
    arrival_window_s: float
    ramp_up_s: float
    drain_s: float


def load_of(result: RunResult, requests: Rows) -> Load:
    """The load of the `requests` that count, among all of the run. Undefined values are NaN: rates of an arrival
    window of no length, such as that of requests that all arrive at once."""
    arrival = floats(requests, "arrival_time")
    start, end = nan_min(arrival), nan_max(arrival)
    window = end - start
    finish = floats(result.request_rows, "finish_time")
    num_served = int(((finish > start) & (finish <= end)).sum())
    drain = nan_max(finish) - nan_max(floats(result.request_rows, "arrival_time"))
    return Load(
        offered_rate=ratio(int((~np.isnan(arrival)).sum()) - 1, window),
        served_rate=ratio(num_served, window),
        window_output_throughput=ratio(_output_tokens(result, start, end), window),
        queue_growth=_growth(result.step_rows, start, end),
        arrival_window_s=window,
        ramp_up_s=_ramp_up(result.step_rows, start, end),
        drain_s=max(drain, 0.0),
    )


def _output_tokens(result: RunResult, start: float, end: float) -> float:
    """Output tokens between two times: the first token of each sequence, and those of decode steps."""
    first = floats(result.request_rows, "first_token_time")
    if result.are_steps_sampled:
        return _evenly(result.request_rows, start, end)
    num_first = int(result.request_rows["num_sequences"].to_numpy()[(first > start) & (first <= end)].sum())
    steps = result.step_rows
    tokens = steps["num_decode_seqs"].to_numpy() + steps["num_accepted_tokens"].to_numpy()
    done = step_integral(steps, tokens, [start, end])
    return num_first + float(done[1] - done[0])


def _evenly(requests: Rows, start: float, end: float) -> float:
    """Output tokens between two times, those of a request spread evenly from its first to its last."""
    first, last = floats(requests, "first_token_time"), floats(requests, "finish_time")
    inside = np.clip(last, start, end) - np.clip(first, start, end)
    shares = np.where(last > first, inside / np.where(last > first, last - first, 1), (first > start) & (first <= end))
    return float(np.nansum(shares * requests["num_output_tokens"].to_numpy()))


def _growth(steps: Rows, start: float, end: float) -> float:
    """Slope of the least-squares line through the number waiting between two times; idle time counts as 0."""
    waiting = levels_of(steps, "num_waiting")
    begins, ends = waiting.begins.clip(start, end), waiting.ends.clip(start, end)
    window = end - start
    if not window**3 > 0:  # as of two arrivals within 10^-100 s
        return math.nan
    middle = (start + end) / 2
    # integral of (t - middle) * waiting over the steps, by that of (t - middle)²
    moments = ((ends - middle) ** 2 - (begins - middle) ** 2) / 2 * waiting.values
    return float(moments.sum()) * 12 / window**3


def _ramp_up(steps: Rows, start: float, end: float) -> float:
    """Seconds until as many requests run as in the median over the time between `start` and `end`."""
    level = levels_of(steps, "num_running")
    begins, running = level.begins.clip(start, end), level.values
    durations = level.ends.clip(start, end) - begins
    if not durations.sum() > 0:
        return math.nan
    order = np.argsort(running, kind="stable")
    busy = np.cumsum(durations[order])
    below = (end - start) / 2 - ((end - start) - busy[-1])  # idle time counts as 0 running
    median = running[order[min(np.searchsorted(busy, max(below, 0.0)), len(order) - 1)]]
    reached = begins[(running >= median) & (durations > 0)]
    return float(reached[0] - start) if len(reached) else math.nan
