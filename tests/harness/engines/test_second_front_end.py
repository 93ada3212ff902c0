"""A request whose prompt was computed elsewhere passes the front end of its server for decodes, too."""

from __future__ import annotations

import pandas as pd
import pytest

from harness import run

APART = ("fleet=disaggregated", "fleet.decode.replicas=2", "plots=false", "arrival=trace", "scheduler=vllm")
FRONT = ("frontend=vllm", "frontend.request_ms=2", "frontend.prompt_token_us=10", "frontend.latency_ms=5",
         "frontend.latency_spread=0")  # fmt: skip


def ttft_ms(arrivals: list[float], *overrides: str) -> list[float]:
    columns = {"arrival_time": arrivals, "num_prompt_tokens": [400] * len(arrivals)}
    trace = pd.DataFrame({**columns, "num_output_tokens": [5] * len(arrivals)})
    requests = run(*APART, *overrides, trace=trace).requests
    assert (requests["status"] == "finished").all()
    return [float(each) for each in 1e3 * requests["ttft"]]


def test_a_request_is_parsed_and_tokenised_on_both_servers() -> None:
    without, passed = ttft_ms([0.0, 10.0], "frontend=none"), ttft_ms([0.0, 10.0], *FRONT)
    assert passed == pytest.approx([each + 2 * (2 + 400 * 0.01 + 5) for each in without])


def test_requests_that_come_together_share_the_front_ends_and_none_is_lost() -> None:
    count = 40
    passed = ttft_ms([0.0] * count, *FRONT, "frontend.processes=2")
    first = count * 2 / 2 + 400 * 0.01 + 5  # ms: all take turns at the two processes of one server for prompts
    assert min(passed) > first + 2 + 400 * 0.01 + 5 and len(passed) == count
