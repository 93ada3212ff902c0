"""Imports chosen modules of a package from a folder, with stand-ins for everything else that they import.

A scheduler imports its whole engine for the sake of type names. Stand-ins answer any import and any attribute, so that
the few modules which decide something run without the rest, unchanged but for named corrections of their text.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any


class _AnyName(type):
    """Classes whose every public attribute exists and is again such a class."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(name)

    def __getitem__(cls, item: Any) -> Any:
        return cls


def stand_in(name: str) -> Any:
    """A class that can be called with anything, and whose instances do nothing."""
    body = {"__init__": lambda self, *args, **kwargs: None, "__getattr__": _instance_attribute}
    return _AnyName(name, (), body)


def _instance_attribute(instance: Any, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return lambda *args, **kwargs: None


class _StandInModule(ModuleType):
    __path__: MutableSequence[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = stand_in(name)
        setattr(self, name, value)
        return value


class Corrections(dict[str, list[tuple[str, str]]]):
    """For a module, pieces of its text and what stands there instead."""


class SelectiveFinder(MetaPathFinder, Loader):
    """Finds modules of `packages`: those in `real`, or below one of them, under `folder`, stand-ins for the others.

    Args:
        values: attributes of stand-ins that matter, by module name.
        corrections: pieces of text to replace in real modules; each must occur exactly once.
    """

    def __init__(
        self,
        folder: Path,
        packages: Sequence[str],
        real: Sequence[str],
        values: Mapping[str, Mapping[str, Any]],
        corrections: Corrections,
    ) -> None:
        self._folder, self._packages, self._real = folder, packages, real
        self._values, self._corrections = values, corrections

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in self._packages:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name) if self._is_real(spec.name) else _StandInModule(spec.name)
        for name, value in self._values.get(spec.name, {}).items():
            setattr(module, name, value)
        return module

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        if not self._is_real(name):
            return
        path = self._folder / Path(*name.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        text = path.read_text(encoding="utf-8")
        for wrong, right in self._corrections.get(name, []):
            if text.count(wrong) != 1:
                raise ImportError(f"{path} is of another version: not once in it is {wrong!r}")
            text = text.replace(wrong, right)
        module.__file__ = str(path)
        exec(compile(text, str(path), "exec"), module.__dict__)

    def _is_real(self, name: str) -> bool:
        return any(name == real or name.startswith(real + ".") for real in self._real)


@contextmanager
def selective_imports(finder: SelectiveFinder, packages: Sequence[str]) -> Iterator[None]:
    """While this is entered, `finder` answers first; afterwards no module of `packages` can be imported by its name."""
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in packages}
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in list(sys.modules):
            if name.partition(".")[0] in packages:
                del sys.modules[name]
        sys.modules.update(hidden)
