"""Traces that gzip has compressed are read as they are; other packed files are named for what they are."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from engine.documents import DocumentError, read_json
from harness.config import AzureTrace, CsvTrace, JsonlTrace, ShareGptTrace
from harness.errors import TraceError
from harness.workload.readers import load_trace

CSV = "arrival_time,num_prompt_tokens,num_output_tokens\n0,5,3\n1,6,2\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:01:51,10,2\n2023-11-16 18:01:52,11,3\n"
CHAT = [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "world"}]
TEXTS: dict[type[Any], str] = {
    CsvTrace: CSV,
    AzureTrace: AZURE,
    JsonlTrace: '{"num_prompt_tokens": 5, "num_output_tokens": 3}\n{"num_prompt_tokens": 6, "num_output_tokens": 2}\n',
    ShareGptTrace: json.dumps([{"id": "a", "conversations": CHAT}, {"id": "b", "conversations": CHAT}]),
}


@pytest.mark.parametrize("kind", list(TEXTS))
def test_a_compressed_trace_is_read(kind: type[Any], tmp_path: Path) -> None:
    plain, packed = tmp_path / "t", tmp_path / "t.gz"
    plain.write_text(TEXTS[kind])
    packed.write_bytes(gzip.compress(TEXTS[kind].encode()))
    tables = [load_trace(kind(path=str(path)), seed=0).table for path in (plain, packed)]
    assert len(tables[0]) == 2 and tables[0].equals(tables[1])


def test_damaged_and_other_packed_files_are_one_line(tmp_path: Path) -> None:
    path, whole = tmp_path / "t.gz", gzip.compress(CSV.encode() * 50)
    for data in (whole[:-9], whole[:40] + b"\xff" * 20 + whole[60:], whole[:9]):
        path.write_bytes(data)
        with pytest.raises(TraceError, match="cannot be read: damaged gzip file") as error:
            load_trace(CsvTrace(path=str(path)), seed=0)
        assert "\n" not in str(error.value)
    for start, what in (
        (b"PK\x03\x04", "a zip archive"),
        (b"PAR1", "a Parquet file"),
        (b"BZh9", "compressed by bzip2"),
    ):
        path.write_bytes(start + b"x" * 99)
        with pytest.raises(TraceError, match=f"is {what}, which is not read"):
            load_trace(CsvTrace(path=str(path)), seed=0)


def test_a_document_is_unpacked_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}'))
    assert read_json(path) == {"a": 1}
    path.write_bytes(gzip.compress(b" " * 10_000_000 + b"1"))
    with pytest.raises(DocumentError, match="more than 100000 bytes once unpacked"):
        read_json(path, max_bytes=100_000)
