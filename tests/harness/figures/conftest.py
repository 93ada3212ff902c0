"""What all tests of figures have in common."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def warnings_are_errors() -> Iterator[None]:
    """matplotlib warns where labels do not fit or an axis cannot be drawn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
