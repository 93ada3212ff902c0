"""Overrides such as block_size=16, written from values."""

import json
import re
from collections.abc import Mapping
from typing import Any

_SHORTENED = r"\d+\.\d*0"  # as a number: "0.20" is a version, and not 0.2


def quoted(value: Any) -> str:
    """A value in the grammar of Hydra's overrides."""
    value = value.item() if hasattr(value, "item") else value  # a number of numpy
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(quoted, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}: {quoted(each)}' for key, each in value.items())}}}"
    text = str(value)
    if re.fullmatch(r"[\w./-]+|\$\{[\w:]+\}", text) and not re.fullmatch(_SHORTENED, text):
        return text
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", text)
    return f"'{escaped}'"
