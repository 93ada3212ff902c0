"""The highest load at which the SLO of a configuration holds, and searches for configurations that bear most.

This room has the name of the function of the door: `from harness import capacity` may find either, and both search.
"""

import importlib
import sys
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    def __call__(self, *overrides: str, **options: Any) -> Any:
        return importlib.import_module("harness.api").capacity(*overrides, **options)


sys.modules[__name__].__class__ = _Room
