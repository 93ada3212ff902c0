"""What a command line of another tool becomes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from harness.config.quoting import quoted
from harness.errors import ConfigError


class Translation(NamedTuple):
    """Overrides of Hydra for a command line, and one line for each thing in it that they leave out."""

    overrides: list[str]
    notes: list[str]


def translation(made: Mapping[str, Any], given: Collection[str], notes: list[str]) -> Translation:
    """Of the keys in `made`, without those that are `given` beside the command line, alone or by their group."""
    groups = set(given) & {"model", "speculation", "frontend"}
    kept = {key: v for key, v in made.items() if key not in given and key.partition(".")[0] not in groups}
    return Translation([f"{key}={quoted(value)}" for key, value in kept.items()], notes)


@contextmanager
def refused_as(key: str) -> Iterator[None]:
    """Begins the refusals of what is run inside with the key that gave the command line."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None
