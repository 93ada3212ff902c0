"""JSON and YAML from elsewhere: plain values, or one line."""

from __future__ import annotations

import gzip
import os
import time
import tracemalloc
from pathlib import Path

import pytest

from engine.documents import MAX_DEPTH, MAX_YAML_BYTES, DocumentError, parse_json, parse_yaml, read_json, read_yaml

BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]\n"


def refusal(read: object, *args: object, **keys: object) -> str:
    with pytest.raises(DocumentError) as caught:
        read(*args, **keys)  # type: ignore[operator]
    assert str(caught.value).isprintable() and len(str(caught.value)) < 300
    return str(caught.value)


def test_plain_values_are_read_as_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hidden")
    text = "a: ${oc.env:SECRET}\nb: [1, -2.5, 1e-3, true, null]\nc: {d: 2025-01-01, e: 'x'}\n"
    values = {
        "a": "${oc.env:SECRET}", "b": [1, -2.5, 0.001, True, None], "c": {"d": "2025-01-01", "e": "x"},
    }  # fmt: skip
    assert parse_yaml(text) == values
    assert parse_json('{"a": "${oc.env:SECRET}", "b": [1.5, 18446744073709551615, null]}')["b"][1] == 2**64 - 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "aliases"),
        ("[" * 100_000, "nested more than 64 deep"),
        ("{a: " * 65 + "1" + "}" * 65, "nested more than 64 deep"),
        ("- " * 3000, "nested more than 64 deep"),
        ("a: 1\nb: 2\na: 3", "the key 'a' is there twice"),
        ("{" + "a, " * 5_000 + "}", "the key 'a' is there twice"),
        ("a: " + "9" * 5000, "an integer of 5000 characters"),
        ("a: 1" + ":1" * 100_000, "an integer of 200001 characters"),
        ("a: 1" + ":1" * 400 + ".5", "too large"),
        ("a: " + "9" * 31, "an integer of more than 64 bits"),
        ("a: .nan", "holds nan"),
        ("a: [.inf]", "holds inf"),
        ("a: 1e999", "holds inf"),
        ("!!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("!!binary aaaa", "a value of type bytes"),
        ("!!int ''", "not YAML"),
        ("!!bool x", "not YAML"),
        ("a: !!timestamp 2020-13-45", "month must be in 1..12"),
        ("? [1]\n: 2", "unhashable"),
        ("--- 1\n--- 2", "another document"),
        ('"\\ud800"', "invalid Unicode"),
        ("\0", "control characters"),
        ("a: [", "not YAML"),
    ],
)
def test_yaml_refusals(text: str, message: str) -> None:
    assert message in refusal(parse_yaml, text)


def test_a_long_number_takes_time_by_its_length_not_by_its_square() -> None:
    started = time.process_time()
    assert "an integer of 60000 characters" in refusal(parse_yaml, "a: " + "9" * 60_000)
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested more than 64 deep"),
        ("[" * 65 + "]" * 65, "nested more than 64 deep"),
        ('{"a":' * 500 + "1" + "}" * 500, "nested more than 64 deep"),
        ("1" * 5000, "not JSON"),
        ("-" + "1" * 31, "an integer of more than 64 bits"),
        ("[NaN]", "holds nan"),
        ('{"a": -1e999}', "holds -inf"),
        ('{"\\ud800": 1}', "half of a surrogate pair"),
        ('{"a": 1', "Expecting ',' delimiter"),
        ("", "Expecting value"),
    ],
)
def test_json_refusals(text: str, message: str) -> None:
    assert message in refusal(parse_json, text)


def test_depth_up_to_the_limit_is_read() -> None:
    text = "[" * (MAX_DEPTH - 1) + "1" + "]" * (MAX_DEPTH - 1)
    assert parse_json(text) == parse_yaml(text)


def test_readers_that_check_numbers_themselves_get_all_of_them() -> None:
    assert parse_json(f"[Infinity, {10**40}]", numbers="any") == [float("inf"), 10**40]


def test_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("[1]")
    (tmp_path / "b").write_bytes(gzip.compress(b"[1]"))
    tracemalloc.start()
    assert [read_json(tmp_path / name) for name in "ab"] == [[1], [1]]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 24


def test_files_that_are_no_text_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert refusal(read_yaml, path) == "cannot be read: No such file or directory"
    assert refusal(read_json, tmp_path) == "cannot be read: Is a directory"
    assert refusal(read_json, Path("/dev/zero")) == "cannot be read: not a regular file"
    os.mkfifo(path)
    assert refusal(read_json, path) == "cannot be read: not a regular file"
    path.unlink()
    path.write_bytes(b"\xff\xfe\x00")
    assert refusal(read_json, path) == "cannot be read: not text in UTF-8"
    path.write_bytes(b"\xef\xbb\xbf[1]")
    assert read_json(path) == read_yaml(path) == [1]
    path.write_bytes(b" " * (MAX_YAML_BYTES + 1))
    assert "bytes, where at most" in refusal(read_yaml, path)
    assert "bytes, where at most" in refusal(read_json, path, max_bytes=9)
    assert refusal(read_json, tmp_path / "a\0b") == "cannot be read: embedded null byte"
