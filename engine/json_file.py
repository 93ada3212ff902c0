"""Reads the JSON files of a model folder; every value is checked for its type and its range. Imports no torch."""

from __future__ import annotations

import reprlib
from collections import abc
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine import documents
from engine.documents import errors_as

_MOST_BYTES = 64 << 20  # the index of a model with 100,000 tensors has 10 MB
_SHORT = reprlib.Repr()
_SHORT.maxstring = 100


class ModelError(ValueError):
    """A model that cannot be built or loaded; the message is one line that names what is wrong."""


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; raises ModelError if there is none, or the file is larger than 64 MiB."""
    with errors_as(ModelError, path):
        data = documents.read_json(path, numbers="any", max_bytes=_MOST_BYTES)
    if not isinstance(data, dict):
        raise ModelError(f"{path}: not a JSON object")
    return data


def shown(value: object) -> str:
    """A value in one short line, for messages."""
    return _SHORT.repr(value)


@dataclass(frozen=True)
class Fields:
    """A JSON object whose values are read by key; a key whose value is null counts as missing.

    All methods raise ModelError if the value has another type or is out of range, or if it is missing and there is no
    default.

    Attributes:
        data: the object.
        where: its name in messages.
    """

    data: Mapping[str, Any]
    where: str

    def value(self, key: str) -> Any:
        """A value of any type."""
        if self.data.get(key) is None:
            raise ModelError(f"{self.where}: {key} is missing")
        return self.data[key]

    def count(self, key: str, default: int | None = None, *, least: int = 1, most: int) -> int:
        """An integer from `least` to `most`."""
        return self._checked_int(key, self._value_or(key, default), least, most)

    def number(self, key: str, default: float | None = None, *, least: float, most: float) -> float:
        """A number from `least` to `most`."""
        value = self._value_or(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise ModelError(f"{self.where}: {key}={shown(value)}: must be a number from {least:g} to {most:g}")
        return float(value)

    def flag(self, key: str) -> bool:
        """True or false; false if it is missing."""
        value = self._value_or(key, False)
        if not isinstance(value, bool):
            raise ModelError(f"{self.where}: {key}={shown(value)}: must be true or false")
        return value

    def counts(self, key: str, *, most: int, most_values: int) -> tuple[int, ...]:
        """At most `most_values` integers from 0 to `most`; none if the key is missing. One may stand without a list."""
        value = self._value_or(key, [])
        values = value if isinstance(value, list | tuple) else [value]
        if len(values) > most_values:
            raise ModelError(f"{self.where}: {key} has {len(values)} values: there may be {most_values}")
        return tuple(self._checked_int(key, each, 0, most) for each in values)

    def texts(self, key: str) -> abc.Sequence[str]:
        """A list of texts."""
        value = self.value(key)
        if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
            raise ModelError(f"{self.where}: {key}={shown(value)}: must be a list of texts")
        return value

    def fields(self, key: str) -> Fields:
        """An object; an empty one if the key is missing."""
        value = self._value_or(key, {})
        if not isinstance(value, Mapping):
            raise ModelError(f"{self.where}: {key}={shown(value)}: must be an object")
        return Fields(value, f"{self.where}: {key}")

    def _value_or(self, key: str, default: object) -> Any:
        return default if default is not None and self.data.get(key) is None else self.value(key)

    def _checked_int(self, key: str, value: object, least: int, most: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ModelError(f"{self.where}: {key}={shown(value)}: must be an integer from {least} to {most}")
        return value
