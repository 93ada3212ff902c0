"""The scheduler of TensorRT-LLM's PyTorch backend, out of a checkout and without the rest of TensorRT-LLM."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from experiments.oracles.stubs import Corrections, SelectiveFinder, selective_imports

_STOOD_IN_FOR = ("tensorrt_llm", "strenum")
_SCHEDULER = "tensorrt_llm._torch.pyexecutor.scheduler.scheduler"


class LlmRequestState(IntEnum):
    """States in the order in which a request passes through them."""

    ENCODER_INIT = 1
    CONTEXT_INIT = 10
    GENERATION_IN_PROGRESS = 13
    GENERATION_TO_COMPLETE = 14
    GENERATION_COMPLETE = 20


class CapacitySchedulerPolicy(Enum):
    MAX_UTILIZATION = 1
    GUARANTEED_NO_EVICT = 2
    STATIC_BATCH = 3


@contextmanager
def loaded(folder: Path) -> Iterator[SimpleNamespace]:
    """The scheduler's class `SimpleUnifiedScheduler`, by name.

    Args:
        folder: holds the directory `tensorrt_llm`.

    Raises:
        ImportError: the version has no scheduler in Python.
    """
    package = _SCHEDULER.rpartition(".")[0]
    values: dict[str, dict[str, Any]] = {
        "tensorrt_llm.llmapi.llm_args": {"CapacitySchedulerPolicy": CapacitySchedulerPolicy},
        # All modules are loaded as packages, so that the relative import of a sibling ends up one level too deep.
        f"{package}.llm_request": {"LlmRequestState": LlmRequestState},
    }
    if not (folder / Path(*_SCHEDULER.split("."))).with_suffix(".py").exists():
        raise ImportError(f"{folder} has no {_SCHEDULER}")
    finder = SelectiveFinder(folder, _STOOD_IN_FOR, [_SCHEDULER], values, Corrections())
    with selective_imports(finder, _STOOD_IN_FOR):
        module = importlib.import_module(_SCHEDULER)
        yield SimpleNamespace(SimpleUnifiedScheduler=module.SimpleUnifiedScheduler)
