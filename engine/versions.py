"""Versions of the packages below the real engine that it is known to run with."""

from __future__ import annotations

import re

LEAST = {"torch": "2.9", "transformers": "5.0", "triton": "3.5"}  # as in pyproject.toml


def check_versions() -> None:
    """Raises ImportError, in one line, where an older version is installed; what is missing is found when used."""
    from importlib import metadata  # imported late, as simulation does without it

    for name, least in LEAST.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if _numbers(found) < _numbers(least):
            raise ImportError(f"{name} {found} is installed, which is not supported: pip install '{name}>={least}'")


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with: 2.9.1+cu130 is (2, 9, 1)."""
    return tuple(int(number) for number in re.findall(r"\d+", re.split(r"[^\d.]", version)[0]))
