"""Which parameters of a test are for every commit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def few(values: Iterable[Any], count: int = 1) -> list[Any]:
    """The first `count` values, and the others with the mark `slow`."""
    return [pytest.param(value, marks=[pytest.mark.slow] * (place >= count)) for place, value in enumerate(values)]
