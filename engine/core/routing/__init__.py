"""The rules by which a router chooses a server, one per module; a module is found by its name and says which class is
its `ROUTER`.

Code that imports a rule from elsewhere enters it under its path, `package.module:name`.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from engine.core.routing.router import Router

_NOT_RULES = ("router", "draws", "views")
ROUTERS: dict[str, type[Router]] = {
    module.name: import_module(f"{__name__}.{module.name}").ROUTER
    for module in iter_modules(__path__)
    if module.name not in _NOT_RULES
}


def find_router(name: str) -> type[Router] | None:
    """The rule of a name; None for one from elsewhere that was not imported yet.

    Raises:
        ValueError: there is no such rule.
    """
    if name not in ROUTERS and ":" not in name:
        own = ", ".join(sorted(each for each in ROUTERS if ":" not in each))
        raise ValueError(f"rule={name!r}: choose one of {own}")
    return ROUTERS.get(name)
