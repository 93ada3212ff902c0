"""The settings of a policy or a routing rule: a frozen dataclass that it declares, and how it is filled from a
configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from types import NoneType
from typing import Any, get_args, get_type_hints

_NOUNS = {int: "an integer", float: "a number", bool: "true or false", str: "text", NoneType: "null"}


@dataclass(frozen=True)
class NoOptions:
    """The settings of what has none."""


def read_options(options_type: type[Any], given: Mapping[str, Any], owner: str) -> Any:
    """An `options_type` with the values `given` by name and defaults for the rest; `owner` is whose they are, such as
    `policy=fair`.

    Its fields are of the types bool, int, float or str, or one of these and None; a float takes integers too. What else
    must hold of a value is checked in its `__post_init__`, by a ValueError that starts with the name of the field.

    Raises:
        ValueError: a name or a value is wrong; one line that starts with `options.<name>`.
    """
    types = get_type_hints(options_type)
    for name, value in given.items():
        if name not in types:
            allowed = ", ".join(types) or "none"
            raise ValueError(f"options.{name}: {owner} has no such setting (allowed here: {allowed})")
        members = get_args(types[name]) or (types[name],)
        is_number = float in members and isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and isfinite(value)) and type(value) not in {*members} - {float}:
            raise ValueError(f"options.{name}={value!r}: must be {' or '.join(_NOUNS[each] for each in members)}")
    try:
        return options_type(**given)
    except ValueError as error:
        raise ValueError(f"options.{error}") from None
