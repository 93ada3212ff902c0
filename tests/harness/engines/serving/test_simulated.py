"""The simulator as a server in real time: its engine lives through the times of the simulation."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partialmethod
from itertools import pairwise
from pathlib import Path
from socket import create_connection
from threading import Timer

import pandas as pd
import pytest

from engine.server.writes import batched_writes
from harness import interrupts, run, terminal
from harness.engines.serving import serve
from harness.engines.serving.handing_out import HandingOut
from harness.errors import ConfigError
from tests.harness.builders import config
from tests.harness.engines.serving.builders import SIMULATED, serving, until_idle

TRACE = pd.DataFrame({"num_prompt_tokens": [900, 30, 400, 5], "num_output_tokens": [3, 20, 9, 1]})


@pytest.mark.parametrize(
    "options", [(), ("scheduler.async_scheduling=true", "frontend=vllm")], ids=["plain", "ahead, with a front end"]
)
def test_what_it_records_are_the_times_of_the_simulation(options: tuple[str, ...], tmp_path: Path) -> None:
    """Of requests that come one after the other, as the phase in which others arrive is chance."""
    loop = ("arrival=closed_loop", "arrival.concurrency=1", "model=qwen3-0.6b")
    with serving(tmp_path, *SIMULATED, "serve.record=true", *options) as server:
        seen = run("engine=openai", f"engine.endpoint={server.address}", *loop, trace=TRACE).requests
    served = pd.read_parquet(tmp_path / "requests.parquet")
    simulated = run("engine=sim", "frontend=none", "cost=roofline", *loop, *options, trace=TRACE).requests
    for column in ("ttft", "tpot", "e2el"):
        assert served[column].to_numpy() == pytest.approx(simulated[column].to_numpy(), abs=2e-9, nan_ok=True), column
    assert (seen["e2el"] > served["e2el"]).all()
    assert seen["num_output_tokens"].tolist() == served["num_output_tokens"].tolist() == [3, 20, 9, 1]


def test_prefixes_hit_samples_differ_and_clients_that_go_are_forgotten(tmp_path: Path) -> None:
    with serving(tmp_path, *SIMULATED, "serve.answer_tokens=7") as server:
        body = {"prompt": [3] * 64, "n": 2}
        first, second = (server.ask("/v1/completions", {**body, "max_tokens": 5})[1] for _ in range(2))
        assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 63
        texts = [choice["text"].split() for choice in first["choices"]]
        assert [len(text) for text in texts] == [5, 5] and texts[0] != texts[1]
        chat = {"messages": [{"role": "user", "content": "how many?"}]}
        assert server.ask("/v1/chat/completions", chat)[1]["usage"]["completion_tokens"] == 7
        assert server.ask("/v1/completions", {"prompt": [1] * 50_000})[0] == 400

        connection = server.open("/v1/completions", {"prompt": [1], "max_tokens": 30_000, "stream": True})
        connection.getresponse().read1(10)
        assert server.ask("/reset_prefix_cache", {})[0] == 409
        connection.close()
        until_idle(server)
        assert server.metric("vllm:kv_cache_usage_perc") == 0
        assert server.ask("/reset_prefix_cache", {})[0] == 200
        again = server.ask("/v1/completions", {**body, "max_tokens": 5})[1]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_who_goes_while_the_front_end_has_the_request_never_reaches_the_engine(tmp_path: Path) -> None:
    front_end = ("frontend=vllm", "frontend.latency_ms=250", "frontend.latency_spread=0")
    with serving(tmp_path, *SIMULATED, *front_end) as server:
        begun = time.monotonic()
        server.open("/v1/completions", {"prompt": [1], "max_tokens": 9, "stream": True}).close()
        assert server.ask("/v1/completions", {"prompt": [1, 2], "max_tokens": 1})[0] == 200
        assert time.monotonic() > begun + 0.25
        assert server.metric("vllm:prompt_tokens_total") == 2


def test_who_is_on_the_way_to_the_queue_counts_as_waiting(tmp_path: Path) -> None:
    few = ("max_num_seqs=2", "serve.max_waiting=2", "frontend=vllm", "frontend.latency_ms=500")
    with serving(tmp_path, *SIMULATED, *few) as server:
        body = {"prompt": [1], "max_tokens": 1}
        coming = [server.open("/v1/completions", body) for _ in range(4)]
        assert server.ask("/v1/completions", body)[0] == 503
        for each in coming:
            each.close()


def test_a_fleet_is_one_address_whose_rule_spreads_the_calls(tmp_path: Path) -> None:
    fleet = ("replicas=3", "router=session_affinity", "router.view_delay_ms=5", "serve.record=true")
    with serving(tmp_path, *SIMULATED, *fleet) as server:
        body = {"prompt": [7] * 40, "max_tokens": 4}
        for conversation in (None, None, "five", "five", "one", "five"):
            status, document = server.ask("/v1/completions", {**body, "user": conversation})
            assert status == 200 and document["usage"]["completion_tokens"] == 4
        blocks = [line for line in server.ask("/metrics")[1].splitlines() if "num_requests_running{" in line]
        assert [line.rpartition('engine="')[2] for line in blocks] == [f'{number}"}} 0' for number in range(3)]
    requests, steps = (pd.read_parquet(tmp_path / f"{name}.parquet") for name in ("requests", "steps"))
    servers = requests["server"].tolist()
    assert servers[:2] == [0, 0], "nothing ran when the second came"
    assert servers[2] == servers[3] == servers[5] != servers[4], "a conversation stays where it is"
    assert set(steps["server"]) == set(servers) and requests["arrival_time"].is_monotonic_increasing
    assert requests["num_output_tokens"].tolist() == [4] * 6 and (requests["ttft"] > 0).all()


def test_many_streams_get_all_their_tokens_while_others_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their chunks go to the kernel in batches, a chunk at the end of a batch to a client that has gone."""
    batches: list[int] = []
    monkeypatch.setattr(HandingOut, "_send_batch", partialmethod(counted, HandingOut._send_batch, batches))
    body = {"max_tokens": 40, "stream": True}
    with serving(tmp_path, *SIMULATED) as server:
        opened = [server.open("/v1/completions", {**body, "prompt": [i + 1]}) for i in range(48)]
        for each in opened[::4]:
            each.close()
        for i, each in enumerate(opened):
            if i % 4:
                text = each.getresponse().read().decode()
                events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
                tokens = [int(event["choices"][0]["text"].strip(" t")) for event in events]
                assert len(tokens) == 40 and text.endswith("data: [DONE]\n\n")
                assert {(b - a) % 151_936 for a, b in pairwise(tokens)} == {7919}, "in order"
                each.close()
        until_idle(server)
        assert server.metric("vllm:kv_cache_usage_perc") == 0
    assert max(batches) > 16 or batched_writes() is None


def counted(self: HandingOut, send: Callable[[HandingOut], None], batches: list[int]) -> None:
    batches.append(len(self._together))
    send(self)


@pytest.mark.parametrize(
    ("override", "said"),
    [("pipeline_parallel_size=2", "stages of a pipeline"), ("autoscaler.metric=queue", "an autoscaler")],
)
def test_what_it_cannot_be_is_refused(override: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"task=serve: .*{said}"), serving(tmp_path, *SIMULATED, override):
        pass


def test_a_request_that_is_cut_off_by_the_end_leaves_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "_LAST_S", 0.1)
    with ExitStack() as after_the_end, serving(tmp_path, *SIMULATED) as server:
        client = after_the_end.enter_context(create_connection(("127.0.0.1", server.port)))
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
        assert server.ask("/health")[0] == 200
    assert capfd.readouterr().err == ""


class Interrupted:
    """Is interrupted when it is dropped, where Python prints an exception and goes on."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


class Interrupting:
    """Is interrupted when the server is imported."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == serve.__name__:
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_is_lost_before_it_serves_ends_it(tmp_path: Path) -> None:
    timers: list[Timer] = []

    def stop_late(stop: Callable[[], None]) -> None:
        timers.append(Timer(20, stop))
        timers[0].start()

    def on_ready(address: str) -> None:
        Interrupted()

    with interrupts.raised():
        serve.serve(config("task=serve", "serve.port=0", *SIMULATED), tmp_path, on_ready, stop_late)
    assert timers[0].is_alive(), "it had to be stopped"
    timers[0].cancel()


def test_a_signal_does_not_meet_the_import_of_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception from a signal handler may be lost in an import, and then nothing would end the server."""
    monkeypatch.setattr(sys.modules["harness.engines.serving"], "serve", serve)
    monkeypatch.delitem(sys.modules, serve.__name__)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with interrupts.raised(), pytest.raises(KeyboardInterrupt):
        terminal.serve(config("task=serve", "serve.port=0", *SIMULATED), tmp_path)
    assert serve.__name__ in sys.modules, "the import was ended"
