"""The server before the real engine, through its sockets."""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine import LLM, SamplingParams
from engine.server.backend import Channel
from engine.server.real import RealBackend, _Call
from engine.server.tally import Tally
from harness.engines.real import resolve_real
from tests.harness.builders import config
from tests.harness.engines.serving.builders import REAL, Server, serving, until_idle

PROMPT = [5, 6, 7, 8, 9, 10, 11]
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("serve"), *REAL, "serve.max_waiting=40") as running:
        yield running


@pytest.fixture(scope="module")
def llm() -> LLM:
    setup = resolve_real(config(*REAL))
    return LLM(setup.model, setup.engine)


def tokens_of(llm: LLM, prompts: list[list[int]], **params: Any) -> list[list[int]]:
    outputs = llm.generate(prompts, SamplingParams(**GREEDY, **params), use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


def words(tokens: list[int]) -> str:
    return "".join(f" t{token}" for token in tokens)


def test_streams_and_documents_have_the_tokens_of_generate(server: Server, llm: LLM) -> None:
    prompts = [PROMPT, [3] * 20]
    expected = tokens_of(llm, prompts, max_tokens=12)
    body = {"prompt": prompts, "max_tokens": 12, "return_token_ids": True, **GREEDY}
    status, document = server.ask("/v1/completions", body)
    assert status == 200
    assert [choice["token_ids"] for choice in document["choices"]] == expected
    assert [choice["text"] for choice in document["choices"]] == [words(tokens) for tokens in expected]
    assert document["usage"]["prompt_tokens"] == 27 and document["usage"]["completion_tokens"] == 24

    usage = {"include_usage": True, "continuous_usage_stats": True}
    *events, last = server.stream("/v1/completions", {**body, "stream_options": usage})
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 24
    for index, tokens in enumerate(expected):
        own = [choice for event in events for choice in event["choices"] if choice["index"] == index]
        assert sum((choice["token_ids"] for choice in own), []) == tokens
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + ["length"]
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)


def test_a_chat_streams_its_role_and_the_same_text(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "say something"}], "max_tokens": 6, "n": 2, **GREEDY}
    document = server.ask("/v1/chat/completions", body)[1]
    events = server.stream("/v1/chat/completions", body)
    assert [choice["delta"]["role"] for choice in events[0]["choices"]] == ["assistant"] * 2
    for choice in document["choices"]:
        parts = [each for event in events for each in event["choices"] if each["index"] == choice["index"]]
        assert "".join(part["delta"]["content"] for part in parts) == choice["message"]["content"] != ""
    assert document["usage"]["prompt_tokens"] == 2


def test_logprobs_and_stops_have_the_forms_of_the_two_calls(server: Server, llm: LLM) -> None:
    first, second, *_ = tokens_of(llm, [PROMPT], max_tokens=3)[0]
    body = {"prompt": PROMPT, "max_tokens": 3, "logprobs": 2, "stop": f" t{second}", **GREEDY}
    choice = server.ask("/v1/completions", body)[1]["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (f" t{first}", "stop", f" t{second}")
    assert choice["logprobs"]["tokens"][0] == f" t{first}" and len(choice["logprobs"]["top_logprobs"][0]) == 2
    chat = {"messages": [{"role": "user", "content": words(PROMPT)}], "logprobs": True, "top_logprobs": 3}
    content = server.ask("/v1/chat/completions", {**chat, "max_tokens": 1, **GREEDY})[1]["choices"][0]["logprobs"]
    likely = [each["logprob"] for each in content["content"][0]["top_logprobs"]]
    assert content["content"][0]["token"] == f" t{first}"
    assert len(likely) == 3 and likely == sorted(likely, reverse=True)


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/v1/completions", {"prompt": PROMPT, "model": "another"}, 404, "does not exist"),
        ("/v1/completions", {"prompt": PROMPT, "max_tokens": 0}, 400, "max_tokens"),
        ("/v1/completions", {"prompt": [[1], "x"]}, 400, "prompt"),
        ("/v1/completions", {"prompt": [10**6]}, 400, "vocabulary"),
        ("/v1/completions", {"prompt": [1] * 2000}, 400, "exceed"),
        ("/v1/completions", {"prompt": PROMPT, "logit_bias": {"x": 1}}, 400, "x"),
        ("/v1/completions", {"prompt": PROMPT, "echo": True}, 400, "echo"),
        ("/v1/chat/completions", {"messages": []}, 400, "messages"),
        ("/v1/chat/completions", {"messages": [{}], "response_format": {"type": "json_object"}}, 400, "format"),
        ("/v1/chat/completions", {"messages": [{}], "response_format": "json"}, 400, "response_format: must be a JSON"),
        ("/v1/chat/completions", {"messages": [{}], "chat_template_kwargs": "x"}, 400, "chat_template_kwargs: must be"),
        ("/v1/completions", {"prompt": PROMPT, "stream_options": [1]}, 400, "stream_options: must be a JSON object"),
        ("/v1/completions", {"prompt": PROMPT, "priority": math.inf}, 400, "infinity"),
        ("/v1/completions", {"prompt": PROMPT, "model": "\ud800"}, 404, "The model `?` does not exist"),
        ("/tokenize", {"prompt": None}, 400, "prompt: must be a text"),
        ("/v1/nothing", None, 404, "/v1/nothing"),
    ],
)  # fmt: skip
def test_errors_are_those_of_openai(server: Server, path: str, body: Any, status: int, said: str) -> None:
    found, document = server.ask(path, body)
    assert found == status and said in document["error"]["message"]
    assert document["error"]["code"] == status and document["error"]["type"]


def test_a_body_that_is_nested_too_deep_is_refused(server: Server) -> None:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/v1/completions", "[" * 100_000)
    assert connection.getresponse().status == 400
    connection.close()


def test_halves_of_surrogate_pairs_reach_no_tokenizer() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 7, "[UNK]": 1}, unk_token="[UNK]"))
    front = SimpleNamespace(encode=lambda text, add_special_tokens: words.encode(text).ids)
    backend: Any = SimpleNamespace(_front=front)
    assert RealBackend.encode(backend, "\ud800", adds_special_tokens=True) == [7]


def test_texts_and_tokens_turn_into_each_other(server: Server) -> None:
    text = server.ask("/detokenize", {"tokens": PROMPT})[1]["prompt"]
    assert server.ask("/tokenize", {"prompt": text})[1]["tokens"] == PROMPT
    assert server.ask("/v1/models")[1]["data"][0]["id"] == "tiny"
    assert server.ask("/health")[0] == 200


def test_first_tokens_are_told_before_others_are_made(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[list[object]] = []
    backend = RealBackend(llm, "m", Tally(), None)
    monkeypatch.setattr(backend, "_tell", lambda _, news: told.append([channel for channel, *_ in news]))
    calls = [_Call(Channel()) for _ in range(3)]
    for each in calls:
        each.stream = llm.stream([PROMPT], SamplingParams(max_tokens=3, ignore_eos=True))
        backend._calls[each] = None
        backend._step()
    a, b, c = (each.channel for each in calls)
    assert told == [[a], [b], [a], [c], [a, b]]
    while backend._calls:
        backend._step()


def test_a_client_that_goes_is_aborted(server: Server) -> None:
    before = server.metric('vllm:request_success_total{model_name="tiny",engine="0",finished_reason="abort"}')
    for stream in (True, False):
        connection = server.open("/v1/completions", {"prompt": PROMPT, "max_tokens": 900, "stream": stream, **GREEDY})
        while server.metric("vllm:num_requests_running") == 0:
            time.sleep(0.01)
        connection.close()
        until_idle(server)
    after = server.metric('vllm:request_success_total{model_name="tiny",engine="0",finished_reason="abort"}')
    assert after - before == 2


def test_who_would_wait_behind_too_many_is_refused(server: Server) -> None:
    waiting = [server.open("/v1/completions", {"prompt": [[1, i] for i in range(2, 60)], "max_tokens": 400, **GREEDY})]
    while server.metric("vllm:num_requests_waiting") < 40:
        time.sleep(0.01)
    status, document = server.ask("/v1/completions", {"prompt": PROMPT})
    assert status == 503 and document["error"]["type"] == "overloaded_error"
    waiting[0].close()
    until_idle(server)


def soak(server: Server, llm: LLM, *, num_requests: int, num_threads: int, seed: int = 0) -> None:
    """Many clients, of whom some go early and some read slowly: nothing is left, and whoever stays gets all tokens."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(400) for _ in range(rng.randrange(1, 30))] for _ in range(num_requests)]
    lengths = [rng.randrange(1, 30) for _ in prompts]
    kinds = [rng.choice(("reads", "reads", "slow", "goes", "drops")) for _ in prompts]
    params = [SamplingParams(**GREEDY, max_tokens=length) for length in lengths]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    expected = [output.outputs[0].token_ids for output in outputs]
    wrong: list[int] = []
    left = iter(range(num_requests))

    def client() -> None:
        for i in left:
            body = {"prompt": prompts[i], "max_tokens": lengths[i], "stream": True, **GREEDY}
            connection = server.open("/v1/completions", body)
            if kinds[i] == "drops":
                connection.close()
                continue
            response, text = connection.getresponse(), b""
            while piece := response.read1(64 if kinds[i] != "reads" else -1):
                text += piece
                if kinds[i] == "goes":
                    break
                if kinds[i] == "slow":
                    time.sleep(0.002)
            connection.close()
            ended_right = text.endswith(b"data: [DONE]\n\n")
            if kinds[i] != "goes" and not (ended_right and text_of(text) == words(expected[i])):
                wrong.append(i)

    threads = [threading.Thread(target=client) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    until_idle(server)
    assert server.metric("vllm:kv_cache_usage_perc") == 0


def text_of(stream: bytes) -> str:
    events = [line[6:] for line in stream.split(b"\n") if line.startswith(b"data: {")]
    return "".join(choice["text"] for event in events for choice in json.loads(event)["choices"])


def test_soak(server: Server, llm: LLM) -> None:
    soak(server, llm, num_requests=30, num_threads=8)


@pytest.mark.slow
def test_long_soak(tmp_path: Path, llm: LLM) -> None:
    with serving(tmp_path, *REAL) as server:
        soak(server, llm, num_requests=2000, num_threads=16)
