"""Seeded mutations of small valid files: damaged bytes, odd values in cells and fields, broken structure.

`mutants(data, form, n, seed)` gives n files; the i-th depends on `data`, `form`, `seed` and i only.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import yaml

ODD_NUMBERS: tuple[Any, ...] = (
    0, -1, 1, -0.5, 5.5, 1e-300, 1e30, -1e30, 10**30, -(10**30), 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64,
    1e308, 10**400, 1_700_000_000, 1_700_000_000_000, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
ODD_VALUES: tuple[Any, ...] = (
    *ODD_NUMBERS, None, True, False, "", "x", "NaN", "1", "-", "${oc.env:HOME}", "${", "../..", "/dev/null", "a\0b",
    "\ud800", "\u202e", "1" * 5000, [], {}, [[]], [None], {"": 1}, {"a": {"b": [1, "x"]}}, [1, 2, 3], list(range(1000)),
)  # fmt: skip
ODD_CELLS = (
    *map(repr, ODD_NUMBERS), "", " ", "x", '"', '"1"', "1,2", "\r", "\0", "\u00e9", "\u2028", "1_0", "0x1", "+1", "1.",
    ".5", "1e5", "True", "null", "9" * 400, "2023-11-16 18:15:46", "2099-12-31 23:59:59", "1901-01-01 00:00:00", "1e",
)  # fmt: skip

Mutation = Callable[[bytes, random.Random], bytes]


def mutants(data: bytes, form: str, count: int, seed: int = 0) -> Iterator[bytes]:
    """`count` mutations of a file; `form` is "csv", "json", "json_lines", "yaml" or "bytes"."""
    mutations = (*BYTES, *FORMS[form])
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        mutant = data
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            mutant = rng.choice(mutations)(mutant, rng)
        yield mutant


def odd_value(value: Any, rng: random.Random) -> Any:
    """A copy of a JSON-like value in which one place, at any depth, is replaced, removed, renamed or repeated."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        match rng.randrange(8):
            case 0:
                return {name: item for name, item in value.items() if name != key}
            case 1:
                return {(f"{name}x" if name == key else name): item for name, item in value.items()}
            case 2:
                return {**value, rng.choice(("x", "", "kind", "path")): rng.choice(ODD_VALUES)}
            case _:
                return {**value, key: odd_value(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = rng.randrange(len(value))
        match rng.randrange(6):
            case 0:
                return value[:place] + value[place + 1 :]
            case 1:
                return value[:place] + [value[place]] + value[place:]
            case _:
                return value[:place] + [odd_value(value[place], rng)] + value[place + 1 :]
    return rng.choice(ODD_VALUES)


def _place(data: bytes, rng: random.Random) -> int:
    return rng.randrange(len(data) + 1)


def _flip(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _insert(data: bytes, rng: random.Random) -> bytes:
    junk = rng.choice((b"\0", b"\n", b",", b'"', b"{", b"[" * 2000, b"\xff\xfe", b"9" * 30, bytes(range(256)), b"\r\n"))
    place = _place(data, rng)
    return data[:place] + junk + data[place:]


def _cut_out(data: bytes, rng: random.Random) -> bytes:
    first, last = sorted((_place(data, rng), _place(data, rng)))
    return data[:first] + data[last:]


def _repeat(data: bytes, rng: random.Random) -> bytes:
    first, last = sorted((_place(data, rng), _place(data, rng)))
    return data[:last] + data[first:last] * rng.choice((1, 2, 20)) + data[last:]


def _truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: _place(data, rng)]


def _encode(data: bytes, rng: random.Random) -> bytes:
    text = data.decode("utf-8", errors="replace")
    return text.encode(rng.choice(("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "utf-7")), errors="replace")


def _shuffle_lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    rng.shuffle(lines)
    return b"".join(lines)


def _cells(data: bytes, rng: random.Random) -> bytes:
    """Replaces cells, sometimes of a whole column, the header included."""
    lines = [line.split(",") for line in data.decode("utf-8", errors="replace").split("\n")]
    column = rng.randrange(max(map(len, lines)))
    rows = range(len(lines)) if rng.random() < 0.2 else rng.choices(range(len(lines)), k=rng.choice((1, 1, 3)))
    for row in rows:
        if column < len(lines[row]):
            lines[row][column] = rng.choice(ODD_CELLS)
    return "\n".join(map(",".join, lines)).encode("utf-8", errors="replace")


def _column(data: bytes, rng: random.Random) -> bytes:
    """Drops or repeats a column."""
    lines = [line.split(",") for line in data.decode("utf-8", errors="replace").split("\n")]
    column, times = rng.randrange(max(map(len, lines))), rng.choice((0, 2))
    lines = [line[:column] + line[column : column + 1] * times + line[column + 1 :] for line in lines]
    return "\n".join(map(",".join, lines)).encode("utf-8", errors="replace")


def _json(data: bytes, rng: random.Random) -> bytes:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return data
    return json.dumps(odd_value(document, rng)).encode()


def _json_line(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    if lines:
        row = rng.randrange(len(lines))
        lines[row] = _json(lines[row], rng).rstrip() + b"\n"
    return b"".join(lines)


def _json_lines(data: bytes, rng: random.Random) -> bytes:
    """The same odd value for the same field in all lines."""
    try:
        records = [json.loads(line) for line in data.splitlines() if line.strip()]
        key, value = rng.choice(list(records[0])), rng.choice(ODD_VALUES)
        return b"".join(json.dumps({**record, key: value}).encode() + b"\n" for record in records)
    except (ValueError, RecursionError, LookupError, TypeError):
        return data


def _twice(data: bytes, rng: random.Random) -> bytes:
    """An object gets its first key a second time."""
    places = [i for i, byte in enumerate(data) if byte == ord("{")]
    if not places:
        return data
    start = rng.choice(places) + 1
    key = data[start:].partition(b":")[0]
    return data[:start] + key + b": " + json.dumps(rng.choice(ODD_VALUES)).encode() + b", " + data[start:]


def _nest(data: bytes, rng: random.Random) -> bytes:
    """A colon is followed by a deep nest instead of its value's start."""
    opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
    depth = rng.choice((70, 900, 50_000))
    places = [i for i, byte in enumerate(data) if byte == ord(":")] or [0]
    place = rng.choice(places) + 1
    return data[:place] + b" " + opening * depth + b"1" + closing * depth * rng.randrange(2) + data[place:]


def _yaml(data: bytes, rng: random.Random) -> bytes:
    if b"&" in data:  # writing out what the aliases of `_yaml_bomb` stand for would never end
        return data
    try:
        document = yaml.safe_load(data)
    except (yaml.YAMLError, ValueError, RecursionError):
        return data
    # Twice through JSON: no aliases for values that are there twice.
    text = yaml.safe_dump(json.loads(json.dumps(odd_value(document, rng), default=str)), sort_keys=False)
    return str(text).encode("utf-8", errors="replace")


def _yaml_bomb(data: bytes, rng: random.Random) -> bytes:
    """A key that holds 2^40 values by way of aliases."""
    bomb = "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 41))
    return f"a0: &a0 [1, 1]\n{bomb}".encode() + data if rng.random() < 0.5 else data + f"\na0: &a0 [1]\n{bomb}".encode()


BYTES: tuple[Mutation, ...] = (_flip, _insert, _cut_out, _repeat, _truncate, _encode, _shuffle_lines)
FORMS: dict[str, tuple[Mutation, ...]] = {
    "csv": (_cells,) * 8 + (_column,) * 2,
    "json": (_json,) * 10 + (_twice, _nest),
    "json_lines": (_json_line,) * 8 + (_json_lines,) * 3 + (_twice, _nest),
    "bytes": (),
    "yaml": (_yaml,) * 10 + (_twice, _nest, _yaml_bomb),
}
