"""ShareGPT: conversations of the public JSON, token counts, and files of lengths."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harness.config import ShareGptTrace
from harness.errors import ConfigError, TraceError
from harness.workload.readers import load_trace
from harness.workload.readers.sharegpt_text import estimate_tokens
from harness.workload.trace import Trace
from tests.harness.builders import TRACES


def conversation(*messages: tuple[str, str]) -> dict[str, Any]:
    return {"id": "x", "conversations": [{"from": speaker, "value": text} for speaker, text in messages]}


# One token per 4 bytes makes 2, 3; then 1, 1; 2, 1.
TWO_CONVERSATIONS = [
    conversation(("human", "a" * 8), ("gpt", "b" * 12)),
    conversation(("user", "a"), ("chatgpt", "bb"), ("human", "c" * 5), ("gpt", "d" * 4), ("human", "left unanswered")),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sharegpt.json"


def read(path: Path, conversations: list[Any], **keys: Any) -> Trace:
    path.write_text(json.dumps(conversations))
    return load_trace(ShareGptTrace(path=str(path), **({"on_bad_row": "drop"} | keys)), seed=0)


def rows(trace: Trace) -> list[list[int]]:
    return trace.table[["num_prompt_tokens", "num_output_tokens"]].to_numpy().tolist()


def test_first_exchanges(path: Path) -> None:
    trace = read(path, TWO_CONVERSATIONS)
    assert rows(trace) == [[2, 3], [1, 1]]
    assert "session_id" not in trace.table
    assert "turn" not in trace.table
    assert not trace.has_times


def test_every_turn_with_what_was_said_before(path: Path) -> None:
    trace = read(path, TWO_CONVERSATIONS, turns="multi")
    assert rows(trace) == [[2, 3], [1, 1], [1 + 1 + 2, 1]]
    assert trace.table["session_id"].tolist() == [0, 1, 1]
    assert trace.table["turn"].tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("turns", "limit", "num_rows"), [("first", 1, 1), ("multi", 1, 1), ("multi", 2, 2), ("multi", 9, 3)]
)
def test_limit_counts_requests(path: Path, turns: str, limit: int, num_rows: int) -> None:
    trace = read(path, TWO_CONVERSATIONS, turns=turns, limit=limit)
    assert len(trace.table) == num_rows
    assert rows(trace) == rows(read(path, TWO_CONVERSATIONS, turns=turns))[:num_rows]


def test_conversations_after_the_limit_are_not_looked_at(path: Path) -> None:
    assert len(read(path, [TWO_CONVERSATIONS[0], "damaged"], limit=1, on_bad_row="error").table) == 1


def test_estimated_counts_are_announced(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trace = read(path, TWO_CONVERSATIONS)
    assert any("estimated from the text: one token per 4 UTF-8 bytes" in note for note in trace.notes)
    assert "trace.tokenizer" in caplog.text
    assert estimate_tokens(["a", "abcd", "abcde", "\u20ac" * 4]).tolist() == [1, 1, 2, 3]


@pytest.mark.parametrize(
    ("messages", "lengths"),
    [
        ([("gpt", "cut off"), ("human", "a" * 8), ("gpt", "b")], [[2, 1]]),
        ([("system", "a" * 7), ("human", "b" * 8), ("gpt", "c")], [[4, 1]]),
        ([("human", "a" * 4), ("human", "b" * 3), ("gpt", "c" * 4), ("gpt", "d" * 4)], [[2, 3]]),
        ([("human", "a"), ("gpt", " \n"), ("gpt", "bbbb")], [[1, 1]]),
        ([("human", "\ud83d" * 5), ("gpt", "b")], [[2, 1]]),
    ],
)
def test_messages_become_exchanges(path: Path, messages: list[tuple[str, str]], lengths: list[list[int]]) -> None:
    assert rows(read(path, [conversation(*messages)], turns="multi", on_bad_row="error")) == lengths


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"id": "x"}, "no list under 'conversations'"),
        ("text", "no list under 'conversations'"),
        (conversation(), "no user message followed by an answer"),
        (conversation(("human", "a")), "no user message followed by an answer"),
        (conversation(("gpt", "a"), ("human", "b")), "no user message followed by an answer"),
        (conversation(("human", "a"), ("gpt", "")), "no user message followed by an answer"),
        (conversation(("human", "a"), ("martian", "b")), "a message without a known speaker"),
        ({"conversations": [{"from": "human", "value": 3}]}, "a message without a known speaker"),
        ({"conversations": [{"from": ["human"], "value": "a"}]}, "a message without a known speaker"),
        ({"conversations": ["a"]}, "a message without a known speaker"),
    ],
)
def test_bad_conversations(path: Path, bad: Any, reason: str) -> None:
    trace = read(path, [TWO_CONVERSATIONS[0], bad, TWO_CONVERSATIONS[1]])
    assert rows(trace) == [[2, 3], [1, 1]]
    ((counted, count),) = trace.bad_rows.items()
    assert counted.startswith(reason)
    assert count == 1
    with pytest.raises(TraceError, match=f"{path}, conversation 2: {reason}"):
        read(path, [TWO_CONVERSATIONS[0], bad], on_bad_row="error")
    with pytest.raises(TraceError, match="no usable row"):
        read(path, [bad])


def test_damaged_json_is_named(path: Path) -> None:
    path.write_text('[{"id": "x", ')
    with pytest.raises(TraceError, match=f"{path}: not JSON: .*char"):
        load_trace(ShareGptTrace(path=str(path)), seed=0)


class WordTokenizer:
    """Stands in for tokenizers.Tokenizer: one token per word, and one for the start that must not be counted."""

    @classmethod
    def from_file(cls, path: str) -> "WordTokenizer":
        if "broken" in Path(path).read_text():
            raise Exception("no model\nin it")
        return cls()

    def encode_batch(self, texts: list[str], add_special_tokens: bool = True) -> list[SimpleNamespace]:
        words = [["<s>"] * add_special_tokens + text.replace("stripped", "").split() for text in texts]
        return [SimpleNamespace(ids=each) for each in words]


@pytest.fixture
def tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    module = ModuleType("tokenizers")
    vars(module).update(vars(SimpleNamespace(Tokenizer=WordTokenizer)))
    monkeypatch.setitem(sys.modules, "tokenizers", module)
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    return file


@pytest.mark.parametrize("as_folder", [False, True])
def test_a_tokenizer_counts_tokens(path: Path, tokenizer: Path, as_folder: bool) -> None:
    location = str(tokenizer.parent if as_folder else tokenizer)
    trace = read(path, [conversation(("human", "one two three"), ("gpt", "four five"))], tokenizer=location)
    assert rows(trace) == [[3, 2]]
    assert not any("estimated" in note for note in trace.notes)


def test_a_text_without_tokens_counts_as_one(path: Path, tokenizer: Path) -> None:
    trace = read(path, [conversation(("human", "stripped"), ("gpt", "a b"))], tokenizer=str(tokenizer))
    assert rows(trace) == [[1, 2]]


def test_tokenizer_mistakes_are_one_line(path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="trace.tokenizer=.*: must be a tokenizer.json, or a folder with one"):
        read(path, TWO_CONVERSATIONS, tokenizer=str(path.parent / "missing"))
    tokenizer.write_text("broken")
    with pytest.raises(ConfigError, match="trace.tokenizer=.*: not a tokenizer: no model in it"):
        read(path, TWO_CONVERSATIONS, tokenizer=str(tokenizer))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match="pip install tokenizers"):
        read(path, TWO_CONVERSATIONS, tokenizer=str(tokenizer))
    path.write_text("num_prefill_tokens,num_decode_tokens\n1,2\n")
    with pytest.raises(ConfigError, match="holds lengths, no text"):
        load_trace(ShareGptTrace(path=str(path), tokenizer=str(tokenizer)), seed=0)


def test_the_real_tokenizers_library(path: Path, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"one": 0, "two": 1, "[UNK]": 2}, unk_token="[UNK]")
    words = tokenizers.Tokenizer(model)
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    trace = read(path, [conversation(("human", "one two three"), ("gpt", "two"))], tokenizer=str(tmp_path))
    assert rows(trace) == [[3, 1]]


FIRST_EXCHANGES = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\r\n26,5,31,0.19\r\n72,693,765,9.6\r\n"
CONVERSATIONS = (
    "conversation_id,turn,input_tokens,output_tokens,new_input_tokens,shared_prefix_tokens\n"
    "0,0,74,918,74,0\n1,0,290,905,290,0\n1,1,1402,711,207,1195\n2,0,9,1,9,0\n"
)


def read_lengths(path: Path, text: str, **keys: Any) -> Trace:
    path.write_text(text)
    return load_trace(ShareGptTrace(path=str(path), **({"on_bad_row": "drop"} | keys)), seed=0)


def test_lengths_of_first_exchanges(path: Path) -> None:
    assert rows(read_lengths(path, FIRST_EXCHANGES)) == [[26, 5], [72, 693]]
    with pytest.raises(TraceError, match="holds first exchanges only; set trace.turns=first"):
        read_lengths(path, FIRST_EXCHANGES, turns="multi")


def test_lengths_of_conversations(path: Path) -> None:
    trace = read_lengths(path, CONVERSATIONS, turns="multi")
    assert rows(trace) == [[74, 918], [290, 905], [1402, 711], [9, 1]]
    assert trace.table["session_id"].tolist() == [0, 1, 1, 2]
    assert trace.table["turn"].tolist() == [0, 0, 1, 0]


def test_first_turns_of_conversations(path: Path) -> None:
    trace = read_lengths(path, CONVERSATIONS, limit=3, on_bad_row="error")
    assert rows(trace) == [[74, 918], [290, 905], [9, 1]]
    assert trace.bad_rows == {}
    assert "session_id" not in trace.table
    assert "turn" not in trace.table


def test_real_conversations_are_all_usable() -> None:
    file = TRACES / "sharegpt" / "sharegpt_multiturn_derived.csv"
    if not file.exists():
        pytest.skip(f"{file} is not here")
    trace = load_trace(ShareGptTrace(path=str(file), turns="multi", on_bad_row="error"), seed=0)
    assert len(trace.table) == 30_731
    assert trace.table["session_id"].nunique() == 5678
