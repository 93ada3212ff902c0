"""Traces, arrivals, replay, metrics, result tables, plots and reports. In Python: `from harness import run`."""

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.api import capacity, compare, run, sweep
    from harness.errors import ConfigError, TwinServeError

__all__ = ["ConfigError", "TwinServeError", "capacity", "compare", "run", "sweep"]

_PLACES = {"ConfigError": "harness.errors", "TwinServeError": "harness.errors"}

logging.getLogger(__name__).addHandler(logging.NullHandler())  # nothing is printed that nobody asked for


def __getattr__(name: str) -> Any:
    """Imported late: the door brings Hydra and pandas."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES.get(name, "harness.api")), name)
