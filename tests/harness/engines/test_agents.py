"""Agents' sessions in the three worlds: simulation, real engine, and a client before a server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

from harness import run
from tests.harness.builders import SMALLEST
from tests.harness.engines.serving.builders import serving

AGENTS = (
    "trace=agentic", "trace.num_requests=24", "trace.turns=3", "trace.system_tokens=64", "trace.task.mean=20",
    "trace.task.std=5", "trace.tool_result.mean=12", "trace.tool_result.std=6", "trace.output.mean=6",
    "trace.output.std=3", "trace.tool_time=0.02", "trace.subagent_share=0.4", "trace.num_subagents=2",
    "arrival=sessions", "arrival.rate=20", "arrival.think_time=trace", "plots=false",
)  # fmt: skip
SYSTEM = (*SMALLEST[2:], "block_size=4", "max_num_seqs=16", "max_num_batched_tokens=64", "num_blocks=4000")
REAL = (*SYSTEM, *SMALLEST[:2])


def waits(requests: pd.DataFrame) -> Sequence[Sequence[int]]:
    from harness.workload.readers import load_trace
    from tests.harness.builders import config

    table = load_trace(config(*AGENTS).trace, seed=0).table
    assert len(table) == len(requests) and max(map(len, table["waits_for"])) == 3
    return [rows.tolist() for rows in table["waits_for"]]


def check(requests: pd.DataFrame) -> None:
    assert (requests["status"] == "finished").all()
    finish, arrival = requests["finish_time"].to_numpy(), requests["arrival_time"].to_numpy()
    for row, earlier in enumerate(waits(requests)):
        assert all(arrival[row] >= finish[each] - 1e-9 for each in earlier)


def test_requests_wait_and_prompts_hit_alike_in_all_three_worlds(tmp_path: Path) -> None:
    simulated = run(*AGENTS, *SYSTEM, "engine=sim", "cost=roofline").requests
    real = run(*AGENTS, *REAL).requests
    with serving(tmp_path, *REAL) as server:
        seen = run(*AGENTS, *SYSTEM, "engine=openai", f"engine.endpoint={server.address}").requests
    for requests in (simulated, real, seen):
        check(requests)
        assert requests["turn"].tolist() == simulated["turn"].tolist()
    continues = pd.Series([len(each) > 0 for each in waits(simulated)])
    cached = simulated["num_cached_tokens"]
    assert (cached[continues] >= 64).all(), "all prompts begin with the system prompt"
    pd.testing.assert_series_equal(real["num_cached_tokens"][continues], cached[continues])
    pd.testing.assert_series_equal(seen["num_cached_tokens"][continues], cached[continues], check_dtype=False)


def test_the_summary_tells_of_sessions_and_turns() -> None:
    found = run(*AGENTS, "model=qwen3-0.6b")
    whole = found.requests.groupby("session_id").agg({"arrival_time": "min", "finish_time": "max"})
    seconds = whole["finish_time"] - whole["arrival_time"]
    assert found.summary["num_sessions"] == found.summary["completed_sessions"] == len(whole)
    assert found.summary["mean_session_s"] == pytest.approx(seconds.mean())
    assert found.summary["median_session_s"] == pytest.approx(seconds.median())
    turns = found.summary["turns"]
    assert [(turn["first"], turn["last"]) for turn in turns][:3] == [(1, 1), (2, 2), (3, 4)]
    for turn in turns:
        own = found.requests[found.requests["turn"].between(turn["first"] - 1, turn["last"] - 1)]
        assert turn["num_requests"] == len(own)
        assert turn["median_ttft_ms"] == pytest.approx(own["ttft"].median() * 1e3)
        hits = own["num_cached_tokens"].sum() / own["num_prompt_tokens"].sum()
        assert turn["prefix_cache_hit_rate"] == pytest.approx(hits)
    assert "num_sessions" not in run("trace=synthetic", "trace.num_requests=5", "plots=false").summary
