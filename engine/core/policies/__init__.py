"""The scheduling policies, one per module; a module is found by its name and says which class is its `POLICY`."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from engine.core.policy import Policy

POLICIES: dict[str, type[Policy]] = {
    module.name: import_module(f"{__name__}.{module.name}").POLICY for module in iter_modules(__path__)
}
