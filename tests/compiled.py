"""Tests of the core where it is compiled (`setup.py`): its methods cannot be replaced, and nobody inherits from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.results.stored.environment import is_compiled

IS_COMPILED = is_compiled("engine.core.scheduler")


class Overlaid:
    """Stands before an object, compiled or not, and has other methods in place of some."""

    def __init__(self, inner: object, **methods: Callable[..., Any]) -> None:
        self.__dict__.update(methods)
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
