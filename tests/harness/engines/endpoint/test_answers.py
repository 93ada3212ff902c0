"""What a client makes of the events of a stream, and of a server's metrics."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engines.endpoint.answers import Answer, ServerSaidError, StreamReader, read_whole
from harness.engines.endpoint.server_metrics import Readings, parse
from tests.mutations import odd_value


def text(part: str, index: int = 0, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "text": part, **more}]}


def chat(part: str | None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"role": "assistant", "content": part, **more}}]}


def used(tokens: int) -> dict[str, Any]:
    return {"usage": {"prompt_tokens": 5, "completion_tokens": tokens}}


# What comes at 10, 20, 30, ...; tokens, gaps with their weights, and when first and last token came.
A, B, C = text("a"), text("b"), text("c")
END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
STREAMS: dict[str, tuple[list[Any], int, list[tuple[float, int]], tuple[int, int]]] = {
    "a token a chunk": ([A, B, C], 3, [(10, 1), (10, 1)], (10, 30)),
    "running usage": ([A | used(1), B | used(4), C | used(5)], 5, [(10 / 3, 3), (10, 1)], (10, 30)),
    "token ids": ([text("a", token_ids=[1]), text("bc", token_ids=[2, 3])], 3, [(5, 2)], (10, 20)),
    "a token without text": ([text("") | used(1), text("b") | used(2)], 2, [(10, 1)], (10, 20)),
    "a role and an end are no tokens": (
        [chat(""), chat("a"), chat("b"), END], 2, [(10, 1)],
        (20, 30),
    ),
    "reasoning is tokens": ([chat(None, reasoning_content="hm"), chat("a")], 2, [(10, 1)], (10, 20)),
    "two samples have gaps of their own": ([A, text("b", 1), C, text("d", 1)], 4, [(20, 1), (20, 1)], (10, 40)),
    "the last usage counts": ([text("a b"), text("c"), {"choices": [], **used(7)}], 7, [(10, 1)], (10, 20)),
    "running usage of several in the first": ([text("ab") | used(2), text("c") | used(3)], 3, [(10, 1)], (10, 20)),
}  # fmt: skip


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_tokens_and_gaps_of_streams(name: str, size: int) -> None:
    """However the bytes are cut: an event counts when its end comes."""
    events, tokens, gaps, times = STREAMS[name]
    answer = Answer(0, 0, 0)
    reader = StreamReader(answer)
    for now, event in enumerate(events, 1):
        data = b"data: " + json.dumps(event).encode() + b"\n\n"
        for start in range(0, len(data), size):
            reader.feed(data[start : start + size], 10 * now)
    assert (answer.num_tokens, answer.gaps, (answer.first_ns, answer.last_ns)) == (tokens, gaps, times)
    assert not reader.is_done
    reader.feed(b": a comment\n\ndata: [DONE]\n\n", 99)
    assert reader.has_ended and answer.last_ns == times[1]


def test_an_error_in_the_stream_is_told() -> None:
    with pytest.raises(ServerSaidError, match="out of memory"):
        StreamReader(Answer(0, 0, 0)).feed(b'data: {"error": {"message": "out of\\nmemory"}}\n', 1)


VLLM = """# HELP vllm:num_requests_running x
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",x="a,b\\"c"} 1.0
vllm:prefix_cache_queries_total{engine="0"} 100.0
vllm:prefix_cache_hits_total{engine="0"} 40.0
vllm:num_preemptions_total{engine="0"} 5.0
vllm:generation_tokens_total{engine="0"} 60
vllm:prompt_tokens_total{engine="0"} 100
"""
SGLANG = """sglang:num_running_reqs{m="x"} 7
sglang:num_queue_reqs{m="x"} 2
sglang:token_usage{m="x"} 0.5
sglang:num_used_tokens{m="x"} 8000
sglang:cached_tokens_total{m="x"} 40
sglang:prompt_tokens_total{m="x"} 100
sglang:generation_tokens_total{m="x"} 60
"""


@pytest.mark.parametrize(("said", "pool"), [(VLLM, (1000, 16)), (SGLANG, (16_000, 1))], ids=["vllm", "sglang"])
def test_metrics_of_servers(said: str, pool: tuple[int, int]) -> None:
    reading = parse(said, 5)
    assert (reading.values["running"], reading.values["waiting"], reading.values["usage"]) == (7, 2, 0.5)
    readings = Readings([parse(said.replace("60", "10").replace(" 40", " 0"), 0), reading])
    assert readings.pool == pool

    columns = (
        "num_running",
        "num_waiting",
        "num_used_blocks",
        "num_decode_seqs",
        "num_cached_tokens",
        "num_prefill_tokens",
    )
    steps = readings.steps(np.array([1, 2]), lambda n: pd.DataFrame(0, range(n), list(columns)))
    assert steps["num_used_blocks"].tolist() == [pool[0] // 2]
    assert steps["num_decode_seqs"].tolist() == [48]  # of 50 tokens two were first ones
    assert steps["num_cached_tokens"].tolist() == [40]


@pytest.mark.parametrize("number", ["x", "NaN", "+Inf", "-1", "1e300"])
def test_a_number_that_no_metric_can_have_is_no_reading_of_it(number: str) -> None:
    said = f"vllm:num_requests_running {number}\nvllm:kv_cache_usage_perc {number}\nvllm:num_requests_waiting 2\n"
    said += 'vllm:cache_config_info{block_size="²",num_gpu_blocks="' + "9" * 5000 + '"} 1\n'
    reading = parse(said, 1)
    assert reading.values == {"waiting": 2} and reading.num_blocks is reading.block_size is None


def test_a_server_without_metrics_is_no_reading() -> None:
    readings = Readings()
    readings.add("<html>not found</html>\nup 1\n", 3)
    assert not readings.all and readings.pool is None


@given(st.integers(0, 10**9))
def test_an_answer_of_another_form_is_a_value_error_and_leaves_counts(seed: int) -> None:
    """Whatever a server sends, the run goes on with numbers."""
    rng = random.Random(seed)
    answer = Answer(0, 0, 0)
    whole = {**text("a", token_ids=[1]), "usage": {**used(3)["usage"], "prompt_tokens_details": {"cached_tokens": 4}}}
    events = [whole, END, {"choices": [], **used(7)}, {"error": None, **chat("a")}]
    event = odd_value(rng.choice(events), rng)
    with suppress(ValueError, ServerSaidError):
        if rng.random() < 0.5:
            StreamReader(answer).feed(b"data: " + json.dumps(event).encode() + b"\n", 5)
        else:
            read_whole(answer, event, 5)
    counts = (answer.num_tokens, answer.num_prompt_tokens or 0, answer.num_cached_tokens or 0, *answer.token_ids)
    assert all(type(each) is int and 0 <= each < 1 << 31 for each in counts)
    assert answer.num_tokens <= 1 << 20 and sum(count for _, count in answer.gaps) <= answer.num_tokens


@pytest.mark.parametrize("data", [b"[1]", b'{"choices": [1]}', b"[" * 5000, b'{"usage": {"completion_tokens": 1e30}}'])
def test_an_answer_of_another_form_is_unreadable(data: bytes) -> None:
    with pytest.raises(ValueError):
        StreamReader(Answer(0, 0, 0)).feed(b"data: " + data + b"\n", 1)
