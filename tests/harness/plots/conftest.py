"""What all tests of figures have in common."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from harness.plots import style


@pytest.fixture(autouse=True)
def warnings_are_errors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """matplotlib warns where labels do not fit or an axis cannot be drawn. Coarse pictures are written sooner."""
    monkeypatch.setattr(style, "_DPI", 60)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
