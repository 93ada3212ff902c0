"""JSON lines with messages of OpenAI's chat API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.config import JsonlTrace
from harness.errors import ConfigError
from harness.workload.content import block_identities
from harness.workload.readers import load_trace
from harness.workload.trace import Trace

tokenizers = pytest.importorskip("tokenizers")


def message(role: str, content: object) -> dict[str, object]:
    return {"role": role, "content": content}


ASK, ANSWER = message("user", "a b c"), message("assistant", "d e")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    words = {word: number for number, word in enumerate("abcdefghij")} | {"[UNK]": 10}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def read(folder: Path, *rows: dict[str, Any], **keys: Any) -> Trace:
    path = folder / "chats.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return load_trace(JsonlTrace(path=str(path), **{"tokenizer": str(folder)} | keys), seed=0)


def lengths(trace: Trace) -> list[list[int]]:
    return trace.table[["num_prompt_tokens", "num_output_tokens"]].to_numpy().tolist()


def test_the_last_message_of_the_assistant_is_the_answer(folder: Path) -> None:
    more = [
        ASK,
        ANSWER,
        message("user", [{"type": "text", "text": "f"}, {"type": "image_url"}]),
        message("assistant", "g"),
    ]
    trace = read(folder, {"messages": [ASK, ANSWER]}, {"messages": more})
    assert lengths(trace) == [[3, 2], [6, 1]]
    assert [ids.tolist() for ids in trace.table["token_ids"]] == [[0, 1, 2], [0, 1, 2, 3, 4, 5]]
    identities = block_identities(trace, 3)
    assert identities is not None
    assert identities(0).all() == identities(1).part(0, 1), "a later turn shares the earlier one's blocks"
    assert trace.notes == ("message texts only: the tokens of a chat template are not counted",)


def test_a_column_may_say_the_length_of_the_answer(folder: Path) -> None:
    rows = [{"chat": [ASK], "max_tokens": 9, "at": 5}, {"chat": [ASK, ANSWER], "max_tokens": 7, "at": 3}]
    columns = {"chat": "messages", "max_tokens": "num_output_tokens", "at": "arrival_time"}
    trace = read(folder, *rows, columns=columns)
    assert lengths(trace) == [[3, 7], [3, 9]] and trace.table["arrival_time"].tolist() == [0, 2]


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([ASK], "no answer at the end of the messages, and no number of tokens"),
        ([ANSWER], "messages hold no text"),
        ([message("user", ""), ANSWER], "messages hold no text"),
        ("a", "messages is no list of messages with a role and text"),
        ([], "messages is no list of messages with a role and text"),
        ([{"content": "a"}, ANSWER], "messages is no list of messages with a role and text"),
        ([message("user", 5), ANSWER], "messages is no list of messages with a role and text"),
        ([message("user", [{"type": "text"}]), ANSWER], "messages is no list of messages with a role and text"),
    ],
)
def test_rows_that_say_no_request_are_left_out(folder: Path, messages: object, reason: str) -> None:
    trace = read(folder, {"messages": messages}, {"messages": [ASK, ANSWER]}, on_bad_row="drop")
    assert lengths(trace) == [[3, 2]] and trace.bad_rows == {reason: 1}


def test_calls_of_tools_and_broken_characters_count_as_their_text(folder: Path) -> None:
    call: dict[str, object] = {"role": "assistant", "content": None, "tool_calls": [{}]}
    trace = read(folder, {"messages": [ASK, call, message("tool", "a \ud83d"), ANSWER]})
    assert lengths(trace) == [[5, 2]]


def test_what_to_set_is_said(folder: Path) -> None:
    with pytest.raises(ConfigError, match="set trace.tokenizer=<folder of the model, or its tokenizer.json> to count"):
        read(folder, {"messages": [ASK, ANSWER]}, tokenizer=None)
    with pytest.raises(ConfigError, match="holds lengths, no messages; leave it out"):
        read(folder, {"num_prompt_tokens": 1, "num_output_tokens": 1})
    with pytest.raises(ConfigError, match="has num_prompt_tokens beside messages, which say it"):
        read(folder, {"messages": [ASK, ANSWER], "num_prompt_tokens": 1})
