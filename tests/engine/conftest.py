"""Engines with several ranks start them fast."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def ranks_are_forks(forked_ranks: None) -> None:
    """See `forked_ranks`."""
