"""The mean number of waiting requests is that of the times that they wait, whatever runs meanwhile."""

from __future__ import annotations

import numpy as np
import pytest

from harness import run

SMALL_POOL = ["num_blocks=400", "trace.num_requests=70", "frontend=none"]


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "overrides",
    [
        ["trace.num_requests=40", "scheduler=vllm"],
        [*SMALL_POOL, "scheduler=vllm", "replicas=2"],
        [*SMALL_POOL, "scheduler.preemption=swap", "tiers=host"],
        [*SMALL_POOL, "trace.n=2"],
        ["trace.num_requests=40"],
        SMALL_POOL,
        [*SMALL_POOL, "scheduler=vllm"],
        [*SMALL_POOL, "pipeline_parallel_size=2"],
    ],
    ids=" ".join,
)
def test_it_is_the_time_that_requests_wait(overrides: list[str]) -> None:
    found = run("model=qwen3-8b", "arrival.rate=12", "plots=false", "perfetto=true", *overrides)
    spans = found.result.spans
    assert spans is not None
    waits = spans[spans["state"].isin(["waiting", "preempted", "swapped"])]
    start, end = found.requests["arrival_time"].min(), found.requests["finish_time"].max()
    seconds = np.minimum(waits["end"], end) - np.maximum(waits["start"], start)
    assert found.summary["mean_waiting"] == pytest.approx(seconds.clip(lower=0).sum() / (end - start), rel=1e-9)
    assert found.summary["mean_waiting"] > 0
    assert (found.summary["preemptions"] > 0) == (overrides[0] == "num_blocks=400")
