"""Engines with several ranks start them fast."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import BaseContext

import pytest

_get_context = multiprocessing.get_context


def _forked_with_torch(method: str | None = None) -> BaseContext:
    return _get_context("forkserver" if method == "spawn" else method)


@pytest.fixture(autouse=True)
def ranks_are_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are forks of one process that has imported what a rank needs. A process of its own takes two seconds of the
    processor for that."""
    multiprocessing.set_forkserver_preload(["engine.runner.worker", "tests.engine.models.tp_worker"])
    monkeypatch.setattr(multiprocessing, "get_context", _forked_with_torch)
