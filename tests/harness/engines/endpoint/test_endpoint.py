"""Runs against servers: failures by kind, loops, what is written, and agreement with what the server recorded."""

from __future__ import annotations

import json
import time
from pathlib import Path
from socket import create_connection
from typing import Any

import aiohttp
import numpy as np
import pandas as pd
import pytest
from aiohttp import web

from harness import run
from harness.errors import ConfigError, EngineError
from harness.measured import load_measured
from harness.measured.vllm_bench import has_aggregates_only
from tests.harness.engines.endpoint.fake_server import fake_server, tokens
from tests.harness.engines.serving.builders import REAL, SIMULATED, serving

KEY = "sk-abcdefgh-very-secret"


def drive(address: str, *overrides: str, trace: pd.DataFrame | None = None) -> Any:
    given = [] if trace is not None else ["trace=synthetic", "trace.num_requests=6"]
    return run("engine=openai", f"engine.endpoint={address}", "arrival=all_at_once", "model=tiny", *given, *overrides,
               trace=trace)  # fmt: skip


def test_failures_are_told_by_kind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And the key is sent, but in no file: not even where the server repeats it."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    trace = pd.DataFrame({"num_prompt_tokens": [1, 2, 3, 4, 5, 6, 7], "num_output_tokens": 4})

    async def answer(request: web.Request, body: dict[str, Any]) -> Any:
        match len(body["prompt"]):
            case 1:
                return web.json_response({"error": {"message": f"wrong key {KEY}"}}, status=401)
            case 2:
                return web.Response(text="no JSON", status=500)
            case 3:
                return await tokens(request, 2, ends=False)
            case 4:
                return await tokens(request, 4, every_s=2)
            case 5:
                assert request.transport is not None
                request.transport.abort()
        return await tokens(request, 4)

    with fake_server(answer) as fake:
        outcome = drive(fake.address, "engine.timeout_s=1", trace=trace)
    kinds = [None if pd.isna(error) else error.partition(":")[0] for error in outcome.requests["error"]]
    assert kinds == ["http_401", "http_500", "cut_off", "timeout", "disconnected", None, None]
    assert outcome.requests["status"].tolist() == ["rejected"] + ["aborted"] * 4 + ["finished"] * 2
    assert any("5 requests failed: http_401 1, http_500 1" in note for note in outcome.summary["notes"])
    assert {headers["Authorization"] for headers in fake.headers} == {f"Bearer {KEY}"}
    outcome.write(tmp_path)
    assert "<key>" in outcome.requests["error"][0]
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes(), path
    assert KEY not in str(outcome.requests.to_dict())


@pytest.mark.parametrize(("retries", "num_attempts", "status"), [(0, 1, "rejected"), (2, 3, "finished")])
def test_retries_are_off_unless_asked_for(
    retries: int, num_attempts: int, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.engines.endpoint.client._RETRY_S", 0.01)
    trace = pd.DataFrame({"num_prompt_tokens": [1, 2], "num_output_tokens": 4})
    busy = {"left": 2}

    async def answer(request: web.Request, body: dict[str, Any]) -> Any:
        if len(body["prompt"]) == 1 and busy["left"]:
            busy["left"] -= 1
            return web.json_response({"error": {"message": "busy"}}, status=429)
        return await tokens(request, 4)

    with fake_server(answer) as fake:
        outcome = drive(fake.address, f"engine.retries={retries}", trace=trace)
    assert sum(len(body["prompt"]) == 1 for body in fake.bodies) == num_attempts
    assert outcome.requests["status"][0] == status


def test_a_request_counts_as_sent_once_the_client_has_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    make = aiohttp.ClientSession.post

    def post(*args: Any, **options: Any) -> Any:
        time.sleep(0.03)
        return make(*args, **options)

    async def answer(request: web.Request, body: dict[str, Any]) -> Any:
        return await tokens(request, 2)

    monkeypatch.setattr(aiohttp.ClientSession, "post", post)
    loop = ("arrival=closed_loop", "arrival.concurrency=1", "engine.metrics_interval_s=0")
    with fake_server(answer) as fake:
        seen = drive(fake.address, *loop).requests
    assert (seen["replay_lag"] >= 0.03).all() and (seen["ttft"] > seen["replay_lag"]).all()


def test_nobody_answers() -> None:
    with pytest.raises(ConfigError, match=r"engine.endpoint=http://127.0.0.1:9: .*onnect"):
        drive("http://127.0.0.1:9")

    async def answer(request: web.Request, body: dict[str, Any]) -> Any:
        return web.Response(status=503)

    with fake_server(answer) as fake, pytest.raises(EngineError, match="no request was answered; the first: http_503"):
        drive(fake.address)


def test_an_open_loop_waits_for_nobody_and_tells_its_lateness() -> None:
    trace = pd.DataFrame({"num_prompt_tokens": 3, "num_output_tokens": 4, "arrival_time": np.arange(20) * 0.02})

    async def answer(request: web.Request, body: dict[str, Any]) -> Any:
        return await tokens(request, 4, every_s=0.1)

    with fake_server(answer) as fake:
        outcome = drive(fake.address, "arrival=trace", trace=trace)
    requests = outcome.requests
    assert requests["arrival_time"].tolist() == pytest.approx(trace["arrival_time"].tolist(), abs=1e-9)
    assert (requests["replay_lag"] >= 0).all() and outcome.summary["p99_replay_lag_ms"] > 0
    # the last came before the first had ended
    assert requests["arrival_time"].max() + requests["replay_lag"].median() < requests["finish_time"].min() + 0.2
    assert (requests["ttft"] >= requests["replay_lag"]).all()
    assert outcome.summary["num_steps"] is None and outcome.summary["preemptions"] is None
    assert outcome.summary["prefix_cache_hit_rate"] is None and outcome.summary["mean_running"] is None


def test_a_closed_loop_keeps_its_clients_and_sessions_send_what_was_said() -> None:
    running = {"now": 0, "most": 0}

    async def answer(request: web.Request, body: dict[str, Any]) -> Any:
        running["now"] += 1
        running["most"] = max(running.values())
        response = await tokens(request, 4, every_s=0.01)
        running["now"] -= 1
        return response

    with fake_server(answer) as fake:
        drive(fake.address, "arrival=closed_loop", "arrival.concurrency=2")
        assert running["most"] == 2 and len(fake.bodies) == 6
        turns = pd.DataFrame({"session_id": [0, 0], "num_prompt_tokens": [8, 20], "num_output_tokens": 4})
        fake.bodies.clear()
        drive(fake.address, "arrival=sessions", "arrival.rate=100", "arrival.think_time=0.01", trace=turns)
    first, second = (body["prompt"] for body in fake.bodies)
    assert second[:8] == first and len(second) == 20


def test_against_our_server_the_client_sees_what_the_server_recorded(tmp_path: Path) -> None:
    """Client and server share the interpreter here: `python -m experiments.three_worlds` has them in two processes."""
    with serving(tmp_path / "server", *REAL, "serve.record=true") as server:
        with create_connection(("127.0.0.1", server.port)) as slow:  # it arrives with its first byte
            body = b'{"prompt": [1], "max_tokens": 1}'
            slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: here\r\n")
            time.sleep(0.4)  # the server's thread may have to wait for its turn meanwhile
            slow.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            assert slow.recv(100).startswith(b"HTTP/1.1 200")
        trace = pd.DataFrame({"num_prompt_tokens": [12] * 24, "num_output_tokens": 16})
        outcome = drive(server.address, "model.vocab_size=512", "arrival=constant", "arrival.rate=20",
                        "engine.warm_up_requests=1", "engine.reset_cache=true", "engine.metrics_interval_s=0.1",
                        trace=trace)  # fmt: skip
    served = pd.read_parquet(tmp_path / "server" / "requests.parquet")
    assert served["ttft"][0] > 0.05
    steps = pd.read_parquet(tmp_path / "server" / "steps.parquet")
    ends = (steps["start_time"] + steps["duration"]).to_numpy()
    for column in ("first_token_time", "finish_time"):  # of a stream: when they were sent, not when their steps ended
        assert np.abs(np.subtract.outer(served[column][1:].to_numpy(), ends)).min() > 1e-6, column
    served = served[2:]  # the second was the warm-up
    seen = outcome.requests
    assert seen["num_output_tokens"].tolist() == served["num_output_tokens"].tolist() == [16] * 24
    sent = seen["ttft"] - seen["replay_lag"]  # the server knows nothing of what was late before it
    assert (sent.to_numpy() > served["ttft"].to_numpy()).mean() > 0.9
    assert np.median(seen["tpot"]) == pytest.approx(np.median(served["tpot"]), rel=0.5, abs=4e-3)  # a busy machine
    assert outcome.summary["num_blocks"] == 400 and outcome.summary["block_size"] == 4
    assert outcome.summary["prefix_cache_hit_rate"] == 0 and outcome.summary["max_running"] >= 1
    assert 24 * 13 <= outcome.result.gaps.count <= 24 * 15  # what comes in one chunk with the first token has no gap


@pytest.mark.parametrize("prompts", ["engine.prompts=text", "engine.api=chat"])
def test_texts_have_as_many_tokens_as_the_trace_says(prompts: str, tmp_path: Path) -> None:
    with serving(tmp_path, *SIMULATED) as server:
        outcome = drive(server.address, prompts, "trace.num_requests=3")
        asked = run("engine=sim", "trace=synthetic", "trace.num_requests=3", "arrival=all_at_once").requests
    assert outcome.requests["num_prompt_tokens"].tolist() == asked["num_prompt_tokens"].tolist()
    assert outcome.requests["status"].unique().tolist() == ["finished"]


def test_a_server_that_makes_no_texts_ends_the_run_with_a_word() -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> Any:
        return web.Response(status=404)

    turns = pd.DataFrame({"session_id": [0, 0], "num_prompt_tokens": [8, 20], "num_output_tokens": 4})
    loop = ("arrival=sessions", "arrival.rate=100", "arrival.think_time=0.01")
    with fake_server(answer) as fake:
        for overrides, trace in (((), None), (loop, turns)):  # beforehand, and when a turn is sent
            with pytest.raises(ConfigError, match=r"prompts=text: the server makes no texts \(/detokenize"):
                drive(fake.address, "engine.prompts=text", *overrides, trace=trace)


@pytest.mark.parametrize(
    "override",
    ["engine.endpoint=localhost:8000", "engine.endpoint=http://user:pw@host", "engine.metrics=http://host?key=1",
     "engine.prompts=ids engine.api=chat", "perfetto=true", "task=calibrate"],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(override: str) -> None:
    with pytest.raises(ConfigError):
        run("engine=openai", "engine.endpoint=http://localhost:1", *override.split())


def test_results_are_those_of_vllm_bench_serve_for_who_reads_them(tmp_path: Path) -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> Any:
        if len(body["prompt"]) == 40:
            return web.Response(status=500)
        return await tokens(request, body["max_tokens"], every_s=0.005)

    lengths = {"num_prompt_tokens": np.arange(20, 41), "num_output_tokens": [1, 5, 9] * 7}
    with fake_server(answer) as fake:
        outcome = drive(fake.address, trace=pd.DataFrame({**lengths, "arrival_time": np.arange(21) * 0.01}))
    outcome.write(tmp_path)
    measured = load_measured(f"vllm_bench:{tmp_path / 'vllm_bench.json'}")
    seen = outcome.requests[outcome.requests["status"] == "finished"]
    read = measured.requests.sort_values("num_prompt_tokens")
    assert "1 of 21 requests failed" in measured.notes[0]
    for name, latency in (("ttft", seen["ttft"] - seen["replay_lag"]), ("e2el", seen["e2el"] - seen["replay_lag"])):
        assert read[name].to_numpy() == pytest.approx(latency.to_numpy(), abs=1e-7), name
    assert read["num_output_tokens"].tolist() == seen["num_output_tokens"].tolist()
    document = json.loads((tmp_path / "vllm_bench.json").read_text())
    assert document["completed"] == 20 and document["mean_tpot_ms"] == outcome.summary["mean_tpot_ms"]
    assert document["mean_ttft_ms"] == pytest.approx(1e3 * sum(document["ttfts"]) / 20)
    assert document["request_rate"] == "inf" and not has_aggregates_only(tmp_path / "vllm_bench.json")
