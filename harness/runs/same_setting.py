"""Whether two systems name a setting differently and mean the same."""

from __future__ import annotations

from typing import Any

from simulator.profile.checks import base_name

_DTYPES = {"half": "float16", "float": "float32"}  # names that vLLM also accepts


def same_setting(name: str, one: Any, other: Any) -> bool:
    """Whether two values of the setting `name` mean the same: a model's name counts without owner, folder and case."""
    return bool(_normalized(name, one) == _normalized(name, other))


def _normalized(name: str, value: Any) -> Any:
    if name == "model":
        return base_name(str(value))
    if name == "dtype":
        dtype = str(value).removeprefix("torch.")
        return _DTYPES.get(dtype, dtype)
    if name == "kv_cache_dtype":  # fp8_e4m3 and fp8_e5m2 take as much memory as fp8; any other value is the model's own
        return str(value).startswith("fp8")
    return value
