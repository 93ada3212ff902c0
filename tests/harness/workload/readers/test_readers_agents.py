"""Readers of the traces of agents: kv-cache-tester (Weka), OpenTelemetry, TraceLab, and AIPerf's Mooncake variants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.config import MooncakeTrace, TraceConfig
from harness.config.schema.traffic.trace_files import OtelTrace, TraceLabTrace, WekaTrace
from harness.errors import ConfigError, TraceError
from harness.workload.lines import continued_rows
from harness.workload.readers import load_trace
from harness.workload.readers.agents.calls import LONGEST
from harness.workload.trace import Trace
from simulator.quantities import MAX_TOKENS
from tests.harness.workload.readers.recordings import AIPERF_TURNS, OTEL, TRACELAB, WEKA, tracelab


def read(config: TraceConfig, *, with_times: bool = False) -> Trace:
    return load_trace(config, seed=0, with_times=with_times)


def columns(trace: Trace, *names: str) -> list[tuple[Any, ...]]:
    values = [[each.tolist() if hasattr(each, "tolist") else each for each in trace.table[name]] for name in names]
    return list(zip(*values, strict=True))


_SHOWN = ("num_prompt_tokens", "num_output_tokens", "waits_for", "think_time")


def test_a_session_of_weka_has_its_sub_agents(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(WEKA))
    (tmp_path / "b.json").write_text(json.dumps({**WEKA, "requests": WEKA["requests"][:1]}))
    trace = read(WekaTrace(path=str(tmp_path)))
    expected = [
        (130, 20, [], 0.0), (70, 5, [0], 1.0), (192, 8, [0], 2.0), (90, 5, [1], 3.0), (256, 9, [2, 3], 3.0),
        (130, 20, [], 0.0),
    ]  # fmt: skip
    assert columns(trace, *_SHOWN) == expected
    assert trace.hash_block_size == 64 and trace.table["session_id"].tolist() == [0, 0, 0, 0, 0, 1]
    assert continued_rows(trace) == [-1, -1, 0, 1, 2, -1]
    first, other = trace.table["hash_ids"][0], trace.table["hash_ids"][5]
    assert len(first) == 3 and not {*first} & {*other}, "ids are of their session; the last block has one of its own"
    assert read(WekaTrace(path=str(tmp_path), limit=2)).table["session_id"].tolist() == [0, 0]


def test_times_of_sub_agents_may_be_those_of_the_session(tmp_path: Path) -> None:
    requests = json.loads(json.dumps(WEKA["requests"]))
    for each in requests[1]["requests"]:
        each["t"] += 3.0
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({**WEKA, "requests": own}) for own in (WEKA["requests"], requests)))
    trace = read(WekaTrace(path=str(path)), with_times=True)
    halves = [trace.table[trace.table["session_id"] == session]["arrival_time"].tolist() for session in (0, 1)]
    assert halves[0] == halves[1] == [0, 3, 4, 7, 12]


def test_spans_wait_for_the_answers_that_they_repeat(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(OTEL, indent=2))
    trace = read(OtelTrace(path=str(path)), with_times=True)
    expected = [(50, 10, [], 0.0), (20, 4, [0], 0.5), (21, 4, [0], 1.0), (90, 10, [0, 1, 2], 1.0)]
    assert columns(trace, *_SHOWN) == expected
    assert trace.table["arrival_time"].tolist() == [0, 2.5, 3, 6]
    assert continued_rows(trace) == [-1, -1, -1, 0]
    assert trace.notes == ("1 calls do not count their tokens: 4 characters are one",)


def test_rounds_of_tracelab_share_what_was_cached(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, TRACELAB)))
    trace = read(TraceLabTrace(path=str(path)))
    expected = [(300, 40, [], 0.0), (400, 10, [0], 2.0), (150, 7, [1], 30.0), (200, 5, [], 0.0)]
    assert columns(trace, *_SHOWN) == expected
    ids = [set(each) for each in trace.table["hash_ids"]]
    assert [len(ids[0] & ids[1]), len(ids[1] & ids[2]), len(ids[0] & ids[3])] == [4, 1, 0]
    assert read(TraceLabTrace(path=str(path)), with_times=True).table["arrival_time"].tolist() == [0, 1, 6, 39]


@pytest.mark.parametrize("says_ids", [True, False], ids=["by ids", "by the times of tools"])
def test_sub_agents_of_tracelab_are_children_of_a_turn(says_ids: bool, tmp_path: Path) -> None:
    """Two agents at once, and one that ends in time but began before any tool for agents was called."""
    names = ["p", "p/subagents/a", "p/subagents/b"] if says_ids else ["p", "a", "b"]
    start = ("user_message", "20.0")
    lines = [
        tracelab(names[0], 0, (300, 128, 40), start, ("tool_call", "24.0")),
        tracelab(names[0], 1, (400, 300, 10), ("tool_result", "44.0"), ("text", "46.0")),
        tracelab(names[0], 2, (500, 400, 10), ("user_message", "50.0"), ("text", "52.0")),
        tracelab(names[1], 0, (200, 0, 5), ("user_message", "24.5"), ("text", "30.0")),
        tracelab(names[1], 1, (260, 200, 5), ("tool_result", "31.0"), ("text", "43.0")),
        tracelab(names[2], 0, (210, 0, 6), ("user_message", "25.0"), ("text", "36.0")),
        tracelab("other", 0, (220, 0, 7), ("user_message", "23.0"), ("text", "24.0")),
    ]
    call = {"tool_name": "Task", "emitted_at": "2026-06-01T05:40:24Z", "result_at": "2026-06-01T05:40:43.5Z"}
    if not says_ids:
        lines[0]["tools"] = [call, {**call, "emitted_at": "2026-06-01T05:40:24.2Z"}, {**call, "tool_name": "Bash"}]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    trace = read(TraceLabTrace(path=str(path)))
    expected = [
        (300, 40, [], 0.0), (200, 5, [0], 0.5), (210, 6, [0], 1.0), (260, 5, [1], 1.0), (400, 10, [0, 3, 2], 1.0),
        (500, 10, [4], 4.0), (220, 7, [], 0.0),
    ]  # fmt: skip
    assert columns(trace, *_SHOWN) == expected
    assert trace.table["session_id"].tolist() == [0, 0, 0, 0, 0, 0, 3]
    assert "2 sessions are of sub-agents, as ids or the times of tools say" in trace.notes


def mooncake(path: Path, lines: list[dict[str, Any]], **options: Any) -> Trace:
    path.write_text("\n".join(map(json.dumps, lines)))
    return read(MooncakeTrace(path=str(path), **options))


def test_turns_of_aiperf_go_on_from_all_that_was_said(tmp_path: Path) -> None:
    trace = mooncake(tmp_path / "a.jsonl", AIPERF_TURNS)
    assert columns(trace, *_SHOWN) == [(600, 40, [], 0.0), (520, 4, [], 0.0), (1140, 30, [0], 2.0)]
    assert trace.table["session_id"].tolist() == [0, 1, 0] and not trace.has_times
    ids = [each.tolist() for each in trace.table["hash_ids"]]
    assert ids[:2] == [[1, 2], [1, 3]] and ids[2][:2] == [1, 2] and len(ids[2]) == 3 and ids[2][2] != 9
    assert continued_rows(trace) == [-1, -1, 0]
    lengths_only = [{key: value for key, value in line.items() if key != "hash_ids"} for line in AIPERF_TURNS]
    assert columns(mooncake(tmp_path / "b.jsonl", lengths_only), *_SHOWN)[2] == (1140, 30, [0], 2.0)


def test_sessions_of_aiperf_are_named_by_numbers_or_texts(tmp_path: Path) -> None:
    turn = {"input_length": 10, "output_length": 2}
    names: list[object] = [0, 0, "", "", ["a"], ["a"], {}, None]
    lines = [{**turn, "session_id": name} for name in names]
    assert mooncake(tmp_path / "a.jsonl", lines).table["session_id"].tolist() == [0, 0, 1, 1, 2, 3, 4, 5]
    rounds = [{**TRACELAB[0], "session_id": name} for name in (["a"], ["a"])]
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, rounds)))
    assert read(TraceLabTrace(path=str(tmp_path / "b.jsonl"))).table["session_id"].tolist() == [0, 1]


@pytest.mark.parametrize("length", [LONGEST + 1, MAX_TOKENS, MAX_TOKENS + 1, 10**30])
def test_no_ids_are_made_for_prompts_that_would_fill_the_memory(length: int, tmp_path: Path) -> None:
    lines = [
        AIPERF_TURNS[0],
        {**AIPERF_TURNS[2], "input_length": length},
        {**AIPERF_TURNS[2], "output_length": -length},
    ]
    assert mooncake(tmp_path / "a.jsonl", lines, on_bad_row="drop").table["num_prompt_tokens"].tolist() == [600]
    rounds = [TRACELAB[0], {**TRACELAB[1], "input_tokens_total": length}, TRACELAB[3]]
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, rounds)))
    trace = read(TraceLabTrace(path=str(tmp_path / "b.jsonl"), on_bad_row="drop"))
    assert trace.table["num_prompt_tokens"].tolist() == [300]


def test_lines_of_aiperf_may_lack_the_length_of_the_answer(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"input_length": 700, "hash_ids": [1, 2], "timestamp": 500},
        {"input_length": 5, "timestamp": 900},
    ]
    with pytest.raises(TraceError, match="num_output_tokens is missing"):
        mooncake(tmp_path / "a.jsonl", lines)
    trace = mooncake(tmp_path / "a.jsonl", lines, output_tokens=16)
    assert columns(trace, "num_prompt_tokens", "num_output_tokens") == [(700, 16), (5, 16)]
    assert read(MooncakeTrace(path=trace.source, output_tokens=16), with_times=True).table["arrival_time"].tolist() == [
        0,
        0.4,
    ]


def test_texts_of_aiperf_are_counted(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    message = {"messages": [{"role": "system", "content": "b b"}, {"role": "user", "content": "a"}], "output_length": 2}
    lines: list[dict[str, Any]] = [{"text_input": "a b a", "output_length": 4}, message]
    trace = mooncake(tmp_path / "a.jsonl", lines, tokenizer=str(tmp_path))
    assert columns(trace, "num_prompt_tokens", "token_ids") == [(3, [1, 2, 1]), (3, [2, 2, 1])]
    turns = [{**line, "session_id": "s"} for line in (lines[0], lines[0])]
    assert columns(mooncake(tmp_path / "b.jsonl", turns, tokenizer=str(tmp_path)), *_SHOWN)[1] == (10, 4, [0], 0.0)
    with pytest.raises(ConfigError, match="set trace.tokenizer"):
        mooncake(tmp_path / "c.jsonl", lines)
    with pytest.raises(ConfigError, match="holds lengths, no texts"):
        mooncake(tmp_path / "d.jsonl", AIPERF_TURNS, tokenizer=str(tmp_path))


@pytest.mark.parametrize("kind", [WekaTrace, OtelTrace, TraceLabTrace, MooncakeTrace])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1}', "not a"),
        ("[1, 2]", "not a JSON object|must be a JSON object|not a Mooncake"),
        ('{"a": ', "not JSON|must be a JSON object|not a Mooncake"),
        ("", "empty"),
        ('{"id": 1, "block_size": "x", "hash_id_scope": "local", "requests": [1]}', "block_size must be|not a"),
        ('{"spans": [{"name": "chat x", "attributes": {"gen_ai.input.messages": "[]"}}]}', "no start_time|not a"),
        ('{"spans": {}}', "holds no request|not a"),
        ('{"a": ' + "[" * 5000 + "]" * 5000 + "}", "not JSON|must be a JSON object|not a Mooncake"),
    ],
)
def test_other_files_are_refused_in_one_line(kind: Any, text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=reason):
        read(kind(path=str(path)))
    with pytest.raises(TraceError):
        read(kind(path=str(tmp_path / "none")))
