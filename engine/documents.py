"""Reads JSON and YAML files that come from elsewhere: a file gives plain values, or one error of one line.

Plain values are dicts, lists, text, numbers, booleans and None. Text such as `${oc.env:HOME}` stays text.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

import yaml
from yaml.composer import Composer

try:
    from yaml import CSafeDumper, CSafeLoader
except ImportError:  # PyYAML was built without libyaml, whose parser takes a tenth of the time
    _LOADERS: tuple[type[Any], ...] = (yaml.SafeLoader,)
    _SafeDumper: type[Any] = yaml.SafeDumper
else:
    _SafeDumper = CSafeDumper
    _LOADERS = (Composer, CSafeLoader)  # the composer in Python calls compose_node, which that in C does not

MAX_DEPTH = 64  # of values within each other, the innermost number or text included
MAX_YAML_BYTES = 1 << 20  # PyYAML takes some seconds for this much
MAX_JSON_BYTES = 2 << 30
_PIECE_BYTES = 1 << 20
BAD_FILE = (OSError, EOFError, zlib.error)  # what reading a file raises, of a damaged gzip file too
_GZIP = b"\x1f\x8b"
_MAX_INTEGER = 1 << 64
_MAX_DIGITS = 100
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_FLOAT = "tag:yaml.org,2002:float"


class DocumentError(ValueError):
    """A file cannot be read as JSON or YAML. The message is one line without the path."""


@contextmanager
def errors_as(kind: type[Exception], where: object) -> Iterator[None]:
    """Errors of a document as errors of another kind, whose message begins with where it stands."""
    try:
        yield
    except DocumentError as error:
        raise kind(f"{where}: {error}") from None


def user_path(name: str) -> Path:
    """The path of a name that a user gave, with the home folder for `~`; a `~` of no user stays as it is."""
    return Path(os.path.expanduser(name))


def read_text(path: Path, max_bytes: int = MAX_JSON_BYTES) -> str:
    """The text of a regular file, also of one that gzip has compressed.

    Raises:
        DocumentError: it is missing, unreadable, no regular file, larger than `max_bytes`, or not UTF-8.
    """
    check_regular(path, max_bytes)
    try:
        with unzipped(path) as file:
            pieces = iter(partial(file.read, _PIECE_BYTES), b"")  # to read up to a size makes room for all of it
            data = b"".join(islice(pieces, max_bytes // _PIECE_BYTES + 1))
    except BAD_FILE as error:
        raise DocumentError(f"cannot be read: {reason_of(error)}") from None
    if len(data) > max_bytes:
        raise DocumentError(f"more than {max_bytes} bytes once unpacked, where at most these are read")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DocumentError("cannot be read: not text in UTF-8") from None


def unzipped(path: Path | str) -> BinaryIO:
    """A file opened for reading, unpacked where gzip has compressed it. Raises `BAD_FILE`, as reading does."""
    with open(path, "rb") as file:
        is_packed = file.read(len(_GZIP)) == _GZIP
    return cast(BinaryIO, gzip.open(path)) if is_packed else open(path, "rb")


def reason_of(error: Exception) -> str:
    """Why a file cannot be read, in a few words."""
    return getattr(error, "strerror", None) or f"damaged gzip file ({_one_line(error)})"


def check_regular(path: Path, max_bytes: int | None = None) -> None:
    """Raises DocumentError unless `path` is a regular file, which a folder, a pipe and a device are not."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:  # ValueError for a path with a null byte
        raise DocumentError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(status.st_mode):
        is_folder = stat.S_ISDIR(status.st_mode)
        raise DocumentError(f"cannot be read: {'Is a directory' if is_folder else 'not a regular file'}")
    if max_bytes is not None and status.st_size > max_bytes:
        raise DocumentError(f"{status.st_size} bytes, where at most {max_bytes} are read")


def read_json(path: Path, *, numbers: str = "finite", max_bytes: int = MAX_JSON_BYTES) -> Any:
    """The JSON document in a file. `numbers` is as in `parse_json`. Raises DocumentError."""
    return parse_json(read_text(path, max_bytes), numbers=numbers)


def parse_json(text: str, *, numbers: str = "finite") -> Any:
    """The JSON document in a text.

    Args:
        numbers: "finite" refuses NaN, infinities and integers of more than 64 bits; "any" lets them through, for
            readers that check each number themselves.

    Raises:
        DocumentError: the text is no JSON, nested more than `MAX_DEPTH` deep, or holds what `numbers` refuses.
    """
    try:
        document = json.loads(text)
    except RecursionError:
        raise DocumentError(f"not JSON: nested more than {MAX_DEPTH} deep") from None
    except ValueError as error:  # also an integer of more digits than Python reads
        raise DocumentError(f"not JSON: {_one_line(error)}") from None
    _check(document, "not JSON", finite=numbers == "finite")
    return document


def read_yaml(path: Path, *, numbers: str = "finite") -> Any:
    """The YAML document in a file, of at most `MAX_YAML_BYTES`. `numbers` and errors are as in `parse_yaml`."""
    return parse_yaml(read_text(path, MAX_YAML_BYTES), numbers=numbers)


def parse_yaml(text: str, *, numbers: str = "finite") -> Any:
    """The YAML document in a text, with numbers and dates read as by OmegaConf: 1e-3 is a number, a date is text.

    Args:
        numbers: as in `parse_json`.

    Raises:
        DocumentError: the text is no YAML, has an alias or a key twice, is nested more than `MAX_DEPTH` deep, or holds
            what `numbers` refuses.
    """
    try:
        document = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise DocumentError(f"not YAML: {_one_line(getattr(error, 'problem', None) or error)}") from None
    except DocumentError:
        raise
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:  # of PyYAML's constructors
        raise DocumentError(f"not YAML: {_one_line(error)}") from None
    _check(document, "not YAML", finite=numbers == "finite")
    return document


def yaml_text(document: Any) -> str:
    """The YAML from which `parse_yaml` gets `document` back: plain values with finite numbers."""
    return str(yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))


class _Dumper(_SafeDumper):
    """PyYAML's safe dumper, which quotes what `_Loader` would not read as text, and writes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _Loader(*_LOADERS):  # type: ignore[misc]
    """PyYAML's safe loader without aliases, dates and repeated keys, and with limits on depth and digits."""

    _depth = 0

    def __init__(self, stream: str) -> None:
        _LOADERS[-1].__init__(self, stream)
        Composer.__init__(self)

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise DocumentError("not YAML as it is read here: aliases (*name) are refused")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise DocumentError(f"not YAML: nested more than {MAX_DEPTH} deep")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key in (key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key in seen:
                raise DocumentError(f"not YAML: the key {_one_line(key)!r} is there twice")
            seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_int(self, node: Any) -> Any:
        if len(node.value) > _MAX_DIGITS:  # PyYAML's time for 1:00:00:... grows with the square of the length
            raise DocumentError(f"not YAML: an integer of {len(node.value)} characters")
        return super().construct_yaml_int(node)


def _without_dates() -> dict[str, list[tuple[str, Any]]]:
    """PyYAML's rules for plain text, but for dates, and with numbers such as 1e-3 as floats."""
    exponent = (_FLOAT, re.compile(r"^[-+]?(?:\d+(?:\.\d*)?|\.\d+)[eE][-+]?\d+$"))
    rules = {
        first: [rule for rule in known if rule[0] != _TIMESTAMP]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    for first in "-+.0123456789":
        rules[first] = [exponent, *rules.get(first, [])]
    return rules


_Loader.yaml_implicit_resolvers = _Dumper.yaml_implicit_resolvers = _without_dates()
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def _check(document: Any, what: str, *, finite: bool) -> None:
    """Raises DocumentError for a value that is refused; goes level by level, without recursion."""
    level = [document]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += value
                inner += value.values()
            elif isinstance(value, list):
                inner += value
            else:
                _check_scalar(value, what, finite)
        if not inner:
            return
        level = inner
    raise DocumentError(f"{what}: nested more than {MAX_DEPTH} deep")


def _check_scalar(value: Any, what: str, finite: bool) -> None:
    if isinstance(value, str):
        if any("\ud800" <= letter <= "\udfff" for letter in (() if value.isascii() else value)):
            raise DocumentError(f"{what}: text with half of a surrogate pair")
    elif not isinstance(value, int | float | None):
        raise DocumentError(f"{what}: a value of type {type(value).__name__}")
    elif finite and isinstance(value, float) and not math.isfinite(value):
        raise DocumentError(f"{what}: holds {value}, where numbers must be finite")
    elif finite and isinstance(value, int) and abs(value) >= _MAX_INTEGER:
        raise DocumentError(f"{what}: holds an integer of more than 64 bits")


def _one_line(error: object) -> str:
    line = " ".join(str(error).split())
    return line if len(line) <= 200 else f"{line[:200]}..."
