"""The scheduling policies, one per module; a module is found by its name and says which class is its `POLICY`.

Code that imports a policy from elsewhere enters it under its path, `package.module:name`.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from engine.core.planning.policy import Policy

POLICIES: dict[str, type[Policy]] = {
    module.name: import_module(f"{__name__}.{module.name}").POLICY for module in iter_modules(__path__)
}


def find_policy(name: str) -> type[Policy] | None:
    """The policy of a name; None for one from elsewhere that was not imported yet.

    Raises:
        ValueError: there is no such policy.
    """
    if name not in POLICIES and ":" not in name:
        own = ", ".join(sorted(each for each in POLICIES if ":" not in each))
        raise ValueError(f"policy={name!r}: choose one of {own}")
    return POLICIES.get(name)
