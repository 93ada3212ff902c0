"""The KV pool that a measured run tells: in its settings, or in the log of vLLM's server beside its record."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import MeasuredRunError
from harness.measured.records import read_text

_LINE = re.compile(r"GPU KV cache size: (\d[\d,]{0,18}) tokens")
_BLOCKS = ("num_gpu_blocks", "num_gpu_blocks_override")
_DEFAULT_BLOCK = 16  # tokens, of vLLM


def logged_pool(settings: Mapping[str, Any], logs: Sequence[Path]) -> int | None:
    """Tokens that the KV pool of the run held; None if neither `settings` nor one of the `logs` tells.

    Raises:
        MeasuredRunError: logs tell different pools, or a log cannot be read.
    """
    block = settings.get("block_size") or _DEFAULT_BLOCK
    for name in _BLOCKS:
        if type(settings.get(name)) is int and type(block) is int and settings[name] > 0:
            return int(settings[name]) * block
    found = {}
    for path in sorted(logs):
        sizes = [int(size.replace(",", "")) for size in _LINE.findall(read_text(path))]
        if sizes:
            found[path] = min(sizes)  # a line per rank: the smallest pool serves all
    if len(set(found.values())) > 1:
        told = ", ".join(f"{path.name} {size:,}" for path, size in found.items())
        raise MeasuredRunError(
            f"{next(iter(found)).parent}: logs of different KV pools ({told} tokens); leave one there"
        )
    return next(iter(found.values()), None)
