"""`frontend=http`: a client of which only the way to the server is known."""

from __future__ import annotations

import pandas as pd
import pytest

from harness import run
from simulator.versions.front_end_times import ROUND_TRIP

# A client sends short requests beside one whose decode runs all the time.
LENGTHS = {"num_prompt_tokens": [200] * 6, "num_output_tokens": [500, *[10] * 5]}


def queued_ms(*overrides: str) -> list[float]:
    loop = ("arrival=closed_loop", "arrival.concurrency=2", "plots=false", "cost=roofline", "device=laptop-cpu")
    requests = run("model=tiny", *loop, *overrides, trace=pd.DataFrame(LENGTHS)).requests
    return [float(each) for each in 1e3 * requests["queue_time"][2:]]


def test_whoever_answers_the_tokens_of_a_step_misses_the_next_one_however_short_the_way() -> None:
    at_once, late = queued_ms("frontend=none"), queued_ms("frontend=http")
    barely = queued_ms("frontend=http", "frontend.latency_ms=0.001", "frontend.latency_spread=0")
    assert at_once == [0.0] * 4
    assert min(barely) > 0.05, "a step of this model takes longer"
    assert min(late) >= 1e-6 * ROUND_TRIP.latency_ns * (1 - ROUND_TRIP.spread)


def test_its_keys_are_those_of_any_front_end() -> None:
    asked = ("frontend=http", "frontend.request_ms=2", "frontend.prompt_token_us=10", "frontend.latency_ms=3",
             "frontend.latency_spread=0", "arrival=trace", "plots=false", "cost=roofline")  # fmt: skip
    requests = run(*asked, trace=pd.DataFrame({"arrival_time": [0.0, 9.0], **{k: v[1:3] for k, v in LENGTHS.items()}}))
    assert [*1e3 * requests.requests["queue_time"]] == pytest.approx([2 + 200 * 0.01 + 3] * 2)
