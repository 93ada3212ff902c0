"""Values of flags, and what they say of formats."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from harness.errors import ConfigError

_MOST_DIGITS = 30
_DTYPES = {"half": "float16", "float": "float32", "float16": "float16", "bfloat16": "bfloat16", "float32": "float32"}


def number(flag: str, text: str, units: Mapping[str, int] | None = None) -> int:
    """A whole number, with a unit of `units` behind it; a decimal fraction only before powers of ten.

    Raises:
        ConfigError: it is none.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)([a-zA-Z]*)", text.strip())
    if match and len(match[1]) <= _MOST_DIGITS:
        factor = (units or {}).get(match[2]) if match[2] else 1
        if factor and (match[1].isdigit() or factor % 1000 == 0):
            return int(float(match[1]) * factor)
    raise _no_number(flag, text)


def decimal(flag: str, text: str) -> float:
    """A number that may have a decimal fraction; raises ConfigError."""
    if re.fullmatch(r"\d+(?:\.\d*)?|\.\d+", text.strip()) and len(text) <= _MOST_DIGITS:
        return float(text)
    raise _no_number(flag, text)


def _no_number(flag: str, text: str) -> ConfigError:
    shown = text if len(text) <= _MOST_DIGITS else f"{text[:_MOST_DIGITS]}..."
    return ConfigError(f"{flag} {shown}: must be a number of at most {_MOST_DIGITS} digits")


def chosen(flag: str, value: str, choices: Mapping[str, Any]) -> Any:
    """What `choices` has for the value; raises ConfigError."""
    if value not in choices:
        raise ConfigError(f"{flag} {value}: not simulated; choose one of {', '.join(choices)}")
    return choices[value]


def formats(
    values: Mapping[str, str], made: Mapping[str, Any], kv_dtypes: Mapping[str, str], methods: Mapping[str, str | None]
) -> dict[str, Any]:
    """Keys of ours for the formats of a server.

    Args:
        made: keys that the command line has given so far.
        methods: formats of weights by the names of `--quantization`; None for that of the checkpoint.
    """
    result = {}
    if (dtype := values.get("--dtype", "auto")) != "auto":
        result["model.dtype"] = chosen("--dtype", dtype, _DTYPES)
    kv_dtype = chosen("--kv-cache-dtype", values.get("--kv-cache-dtype", "auto"), kv_dtypes)
    if kv_dtype != "auto":
        result["engine.kv_cache_dtype"] = kv_dtype
    if method := values.get("--quantization"):
        quantization = chosen("--quantization", method, methods)
        own = made.get("quantization") or made.get("model") == "hf"  # the checkpoint says more than the method
        if quantization is None and not own:
            raise ConfigError(
                f"--quantization {method}: the checkpoint says which format this is; give quantization=..."
            )
        if not own:
            result["quantization"] = quantization
    return result
