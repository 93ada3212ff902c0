"""The checked configuration of a run. `parse` turns a composed Hydra configuration into a RunConfig."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.config.names import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Imported late: what --help says is mostly known without the schema."""
    names = importlib.import_module("harness.config.names")
    if name not in names.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(names, name)
