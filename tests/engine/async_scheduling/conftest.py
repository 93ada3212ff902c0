"""What tests of planning ahead compare with."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    """By an engine that does not plan ahead, from a pool with room for all."""
    import torch

    from engine.api.llm import LLM
    from tests.engine.async_scheduling.builders import serve
    from tests.engine.builders import MODEL, SETTINGS

    torch.set_num_threads(1)
    return serve(LLM(MODEL, **SETTINGS))
