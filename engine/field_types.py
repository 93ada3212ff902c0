"""Whether the fields of a dataclass have values of their types."""

from __future__ import annotations

import dataclasses
import math
import numbers
import reprlib
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_WORDS: dict[Any, str] = {
    bool: "True or False", int: "an integer", float: "a number", str: "a text", type(None): "None", dict: "a dict",
    Mapping: "a dict",
}  # fmt: skip


def check_types(instance: Any) -> None:
    """Check all fields that `instance`, a dataclass, is made with; those whose type is not known are let through.

    Raises:
        ValueError: a value is of another type; the message starts with the name of the field.
    """
    hints = _hints(instance.__class__)
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if field.init and not _is_of(value, hints[field.name]):
            raise ValueError(f"{field.name}={reprlib.repr(value)}: {_allowed(hints[field.name])}")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _is_of(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_is_of(value, each) for each in get_args(hint))
    if origin is Literal:
        return isinstance(value, str) and value in get_args(hint)
    kind = origin or hint
    if kind is float:
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and _is_finite(value)
    if kind is int:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return not isinstance(kind, type) or isinstance(value, kind)


def _is_finite(value: numbers.Real) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:  # an integer beyond all floats
        return False


def _allowed(hint: Any) -> str:
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    choices = [choice for part in parts if get_origin(part) is Literal for choice in get_args(part)]
    if choices:
        return f"choose one of {', '.join(choices)}"
    kinds = [get_origin(part) or part for part in parts]
    return f"must be {' or '.join(_WORDS.get(kind, f'a {kind.__name__}') for kind in kinds)}"
