"""Choices of the attention kernels to try, as changes to their own, and how to launch with them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any
from unittest.mock import patch

from kernels import decode_attention, prefill_attention

Change = Mapping[str, int]
"""Fields of the kernel's configuration and their values."""


def decode_candidates() -> list[Change]:
    return _all(block_n=(32, 64, 128), num_warps=(4, 8), num_stages=(2, 3, 4, 5))


def prefill_candidates() -> list[Change]:
    return _all(block_m=(64, 128), block_n=(32, 64, 128), num_warps=(4, 8), num_stages=(2, 3))


def _all(**values: tuple[int, ...]) -> list[Change]:
    return [dict(zip(values, each, strict=True)) for each in product(*values.values())]


@contextlib.contextmanager
def use_configs(decode: Change | None = None, prefill: Change | None = None) -> Iterator[None]:
    """Launch with these changes inside the block; None keeps the kernel's own choices."""
    with contextlib.ExitStack() as stack:
        for module, name, change in (
            (decode_attention, "decode_config", decode),
            (prefill_attention, "prefill_config", prefill),
        ):
            if change is not None:
                stack.enter_context(patch.object(module, name, _changed(getattr(module, name), change)))
        yield


def _changed(choose: Callable[..., Any], change: Change) -> Callable[..., Any]:
    """A kernel's function that chooses a configuration, with a change to what it returns."""
    return lambda *arguments: replace(choose(*arguments), **change)
