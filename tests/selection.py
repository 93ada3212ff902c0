"""Which parameters and how many examples of a test are for every commit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings


def few(values: Iterable[Any], count: int = 1, rest: pytest.MarkDecorator = pytest.mark.slow) -> list[Any]:
    """The first `count` values, and the others with the mark `rest`."""
    return [pytest.param(value, marks=[rest] * (place >= count)) for place, value in enumerate(values)]


def examples(count: int) -> settings:
    """At most `count` examples, and twice as many for campaigns on mutants."""
    return settings(max_examples=count * (1 if settings.get_current_profile_name() == "commit" else 2))
