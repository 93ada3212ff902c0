"""Code of the user's own that a configuration names as `package.module:name`.

    scheduler.policy   a policy: a class with the methods of engine.core.planning.policy.Policy, such as a BasePolicy
    router.rule        a routing rule, as fleet.decode_router.rule too: a class with the methods of
                       engine.core.routing.router.Router, as a BaseRouter
    trace.target       a trace: a function of path, rng and the trace's options that returns the columns of Trace.table
    arrival.target     an arrival process: a function of trace, rng and its options that returns times in s, or Arrivals
    cost.target        a cost model: a function of model, device, tensor_parallel_size and its options
    figures            a list of figures: functions of a RunResult and its summary

Modules are found where Python finds them, and in the working directory. Only `import_targets` runs code: `parse` calls
it for what the user composes. A configuration that is loaded from a folder of results, which may be of
another person, names code without running it: `find` refuses a name that has not been imported.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from engine.core.policies import POLICIES
from engine.core.routing import ROUTERS
from engine.core.routing.router import BaseRouter
from harness.config.schema.traffic.reader import nearest
from harness.errors import ConfigError, TwinServeError

_imported: dict[str, Any] = {}
_REGISTRIES: dict[str, dict[str, Any]] = {
    "scheduler.policy": POLICIES,
    "router.rule": ROUTERS,
    "fleet.decode_router.rule": ROUTERS,
}
_KINDS = {  # what each is called, derives from and must have
    "scheduler.policy": (
        "policy", "engine.core.planning.policy.BasePolicy",
        ("options_type", "chooses_victims", "make_queue", "admit", "compose"),
    ),
    "router.rule": (
        "routing rule", "engine.core.routing.router.BaseRouter",
        (*(name for name in vars(BaseRouter) if not name.startswith("_")), "choose"),
    ),
}  # fmt: skip
_KINDS["fleet.decode_router.rule"] = _KINDS["router.rule"]


def named_targets(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Key and name of everything in the values of a configuration that may be code of the user's own."""
    for key in _REGISTRIES:
        name = _get(values, *key.split("."))
        if isinstance(name, str) and ":" in name:
            yield key, name
    for group in ("trace", "arrival", "cost"):
        if _get(values, group, "kind") == "custom":
            yield f"{group}.target", _get(values, group, "target")
    figures = values.get("figures")
    if isinstance(figures, list | tuple):
        yield from (("figures", name) for name in figures)


def import_targets(values: Mapping[str, Any]) -> None:
    """Import what the values of a configuration name, so that `find` knows it; policies are added to the registry.

    Raises:
        ConfigError: a module cannot be imported, or has no such callable.
    """
    for key, name in named_targets(values):
        if isinstance(name, str):
            _imported[name] = _import(key, name)
            if key in _REGISTRIES:
                _REGISTRIES[key][name] = _checked(key, name, _imported[name])


def options_type_of(group: str, name: str) -> type[Any] | None:
    """What declares the settings of the policy (of group scheduler) or the rule (of router) of this name; one of the
    user's own is imported for it. None if it cannot be."""
    key = {"scheduler": "scheduler.policy", "router": "router.rule"}[group]
    with suppress(ConfigError):
        import_targets({group: {key.partition(".")[2]: name}})
    found = _REGISTRIES[key].get(name)
    options_type: type[Any] | None = getattr(found, "options_type", None)
    return options_type


def find(key: str, name: str) -> Callable[..., Any]:
    """What `import_targets` imported under a name.

    Raises:
        ConfigError: it was not imported.
    """
    if name not in _imported:
        raise ConfigError(
            f"{key}={name!r}: named by a stored configuration, whose code is not run; give the key yourself"
        )
    found: Callable[..., Any] = _imported[name]
    return found


def source_of(name: str) -> Path | None:
    """The file that an imported name is defined in, None where it has none."""
    module = sys.modules.get(name.partition(":")[0]) if name in _imported else None
    path = getattr(module, "__file__", None)
    return Path(path) if path else None


@contextmanager
def errors_of(key: str, name: str) -> Iterator[None]:
    """What the code of the user's own raises, as an error of the configuration in one line."""
    try:
        yield
    except TwinServeError:
        raise
    except Exception as error:
        raise ConfigError(f"{key}={name!r}: {_described(name, error)}") from error


def _import(key: str, name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    if not (attribute.isidentifier() and all(part.isidentifier() for part in module_name.split("."))):
        raise ConfigError(f"{key}={name!r}: must be package.module:name")
    if (folder := os.getcwd()) not in sys.path:
        sys.path.append(folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{key}={name!r}: importing it failed: {_described(name, error)}") from error
        where = "among Python's packages, on PYTHONPATH or in the working directory"
        raise ConfigError(f"{key}={name!r}: no module {error.name!r} {where}") from None
    except Exception as error:
        raise ConfigError(f"{key}={name!r}: importing it failed: {_described(name, error)}") from error
    found = getattr(module, attribute, None)
    if not callable(found):
        hint = nearest(attribute, [each for each in vars(module) if not each.startswith("_")])
        raise ConfigError(f"{key}={name!r}: {module_name} has no function or class {attribute!r}{hint}")
    return found


def _checked(key: str, name: str, found: Any) -> Any:
    noun, base, needed = _KINDS[key]
    missing = [each for each in needed if not hasattr(found, each)]
    if missing or not isinstance(found, type):
        what = f"it has no {missing[0]}" if missing else "it is no class"
        raise ConfigError(f"{key}={name!r}: no {noun}, {what}; derive it from {base}")
    return found


def _described(name: str, error: Exception) -> str:
    """The error in one line, with the last line of the module that it came through."""
    stem = name.partition(":")[0].rpartition(".")[2]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).stem == stem]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{where}"


def _get(values: Mapping[str, Any], group: str, *keys: str) -> Any:
    inner = values.get(group)
    if not keys:
        return inner
    return _get(inner, *keys) if isinstance(inner, Mapping) else None
