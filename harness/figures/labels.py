"""The words for configurations and their keys in tables and figures: `mixed · 16` under `scheduler · block_size`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_DEFINING = ("kind", "name", "policy")  # keys that name the option of their group


def parameter_title(parameters: Sequence[str]) -> str:
    """Names of the parameters in a `parameter_label`."""
    return " · ".join(short_name(name, parameters) for name in parameters) or "run"


def parameter_label(row: Mapping[Any, Any], parameters: Sequence[str]) -> str:
    """The values of the parameters of a run, such as `16 · mixed`; its name without parameters."""
    return " · ".join(_value_in_label(name, row[name], parameters) for name in parameters) or str(row["run"])


def short_name(parameter: str, parameters: Sequence[str]) -> str:
    """The last part of a dotted name, or its group where the last part names the group's option or is not unique."""
    group, _, last = parameter.rpartition(".")
    if group and last in _DEFINING:
        return group
    alone = sum(name.rpartition(".")[2] == last for name in parameters) == 1
    return last if alone else parameter


def value_label(value: Any) -> str:
    if value is None or value != value:
        return "unset"
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value)).lower()
    if isinstance(value, (float, np.floating)):
        return number(float(value))
    return str(value)


def number(value: float) -> str:
    """Three significant digits below a thousand, whole numbers with separators above."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _value_in_label(name: str, value: Any, parameters: Sequence[str]) -> str:
    """The value; with its name where the value alone says nothing, such as `caching=true`."""
    text = value_label(value)
    return f"{short_name(name, parameters)}={text}" if text in ("true", "false", "unset") else text
