"""The project's own JSON lines: every key, bad lines and wrong files."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from harness.config import JsonlTrace
from harness.config.schema.traffic.trace_files import MooncakeTrace
from harness.errors import TraceError
from harness.workload.readers import load_trace
from harness.workload.trace import Trace


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


def read_jsonl(path: Path, *records: dict[str, object], **keys: object) -> Trace:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return load_trace(JsonlTrace(path=str(path), **({"on_bad_row": "drop"} | keys)), seed=0)  # type: ignore[arg-type]


def test_jsonl_with_every_key(path: Path) -> None:
    common = {"session_id": 1, "priority": 2, "hash_block_size": 4, "request_id": "r"}
    trace = read_jsonl(
        path,
        common
        | {"arrival_time": 1, "num_prompt_tokens": 5, "num_output_tokens": 2, "turn": 0}
        | {"hash_ids": [1, 2], "token_ids": [9, 8, 7, 6, 5]},
        common
        | {"arrival_time": 1.5, "num_prompt_tokens": 7, "num_output_tokens": 1, "turn": 1}
        | {"hash_ids": [1, 3], "token_ids": [9, 8, 7, 6, 5, 4, 3]},
    )
    assert trace.hash_block_size == 4
    assert trace.table["arrival_time"].tolist() == [0.0, 0.5]
    assert [ids.tolist() for ids in trace.table["hash_ids"]] == [[1, 2], [1, 3]]
    assert [ids.tolist() for ids in trace.table["token_ids"]] == [[9, 8, 7, 6, 5], [9, 8, 7, 6, 5, 4, 3]]
    assert trace.table["token_ids"][0].dtype == np.int32
    assert trace.table["turn"].tolist() == [0, 1]
    assert trace.bad_rows == {}


HASHED: dict[str, object] = {"num_prompt_tokens": 5, "num_output_tokens": 1, "hash_block_size": 4, "hash_ids": [1, 2]}
WRONG_NUMBER = "wrong number of hash_ids for num_prompt_tokens (one for each hash_block_size tokens)"
TOKENS: dict[str, object] = {"num_prompt_tokens": 2, "num_output_tokens": 1, "token_ids": [1, 2]}


@pytest.mark.parametrize(
    ("good", "change", "reason"),
    [
        (HASHED, {"hash_ids": [1]}, WRONG_NUMBER),
        (HASHED, {"hash_ids": [1, 2, 3]}, WRONG_NUMBER),
        (HASHED, {"hash_ids": []}, WRONG_NUMBER),
        (HASHED, {"hash_block_size": 8}, "hash_block_size is not that of the first line"),
        (HASHED, {"hash_ids": ["1", "2"]}, "hash_ids is not a list of whole numbers"),
        (HASHED, {"priority": 1}, "the keys are not those of the first line"),
        (TOKENS, {"token_ids": [1]}, "token_ids does not hold num_prompt_tokens ids"),
        (TOKENS, {"token_ids": [1, -1]}, "token_ids holds a negative id"),
        (TOKENS, {"token_ids": [1, 2**31]}, "token_ids is not a list of whole numbers"),
        (TOKENS, {"num_output_tokens": float("nan")}, "num_output_tokens is not a finite number"),
        (TOKENS | {"arrival_time": 0}, {"arrival_time": "\ud800"}, "arrival_time is not a finite number"),
        (TOKENS, {"num_output_tokens": None}, "num_output_tokens is missing"),
    ],
)
def test_jsonl_bad_rows(path: Path, good: dict[str, object], change: dict[str, object], reason: str) -> None:
    trace = read_jsonl(path, good, good | change, good)
    assert len(trace.table) == 2
    assert trace.bad_rows == {reason: 1}


def test_jsonl_more_hash_ids_than_the_prompt_needs_are_refused(path: Path) -> None:
    """As many ids as another request has, whatever the prompt's length, would make up shared prefixes."""
    with pytest.raises(
        TraceError, match=r"1 of 2 rows cannot be used, more than 1%; the first is line 2: wrong number"
    ):
        read_jsonl(path, HASHED, HASHED | {"hash_ids": [1, 2, 3]}, on_bad_row="skip")


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([TOKENS | {"model": "x"}], "unknown column 'model' (allowed: request_id"),
        ([TOKENS, TOKENS | {"model": "x"}], "unknown column 'model' (allowed: request_id"),
        ([TOKENS | {"hash_ids": [1]}], "hash_ids and hash_block_size"),
        ([TOKENS | {"hash_block_size": 16}], "hash_ids and hash_block_size"),
        ([HASHED | {"hash_block_size": 0}], "hash_ids and hash_block_size"),
        ([TOKENS | {"turn": 1}], "turn without session_id"),
        ([{"num_prompt_tokens": 1}], "not a trace: each line must be a JSON object with num_prompt_tokens"),
    ],
)
def test_jsonl_wrong_files(path: Path, records: list[dict[str, object]], message: str) -> None:
    with pytest.raises(TraceError) as error:
        read_jsonl(path, *records)
    assert str(error.value).startswith(f"{path}: {message}")


def test_lines_that_are_no_objects_are_told_in_a_whole_sentence(path: Path) -> None:
    path.write_text("a,b\n1,2\n")
    for config in (MooncakeTrace(path=str(path)), JsonlTrace(path=str(path))):
        with pytest.raises(TraceError, match="each line must be a JSON object$"):
            load_trace(config, seed=0)


@pytest.mark.parametrize("size", [10**30, 2**31, -1, 1.5, True, "16", None])
def test_jsonl_absurd_hash_block_sizes(path: Path, size: object) -> None:
    with pytest.raises(TraceError, match="hash_ids and hash_block_size"):
        read_jsonl(path, HASHED | {"hash_block_size": size})


def test_the_size_of_hashed_blocks_can_be_given(path: Path) -> None:
    names = {"timestamp": "arrival_time", "input_length": "num_prompt_tokens", "output_length": "num_output_tokens"}
    common = {"input_length": 40, "output_length": 4, "turn": 1}
    rows = [{"timestamp": i / 2, **common, "hash_ids": [1, 2, 10 + i]} for i in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    trace = load_trace(JsonlTrace(path=str(path), columns=names, hash_block_size=16), seed=0)
    assert trace.hash_block_size == 16 and trace.table["hash_ids"][2].tolist() == [1, 2, 12]
    assert "turn" not in trace.table, "of a file with other names"
    table = pd.DataFrame(rows)
    found = load_trace(JsonlTrace(path="x", columns=names, hash_block_size=16), seed=0, table=table)
    assert found.hash_block_size == 16
    with pytest.raises(TraceError, match="trace.hash_block_size=<tokens> gives the size"):
        load_trace(JsonlTrace(path=str(path), columns=names), seed=0)
    path.write_text("".join(json.dumps(row | {"hash_block_size": 16}) + "\n" for row in rows))
    with pytest.raises(TraceError, match="beside which trace.hash_block_size has no use"):
        load_trace(JsonlTrace(path=str(path), columns=names, hash_block_size=16), seed=0)
