"""Figures of the user's own, drawn by functions that the configuration names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from harness.config.targets import errors_of, find
from harness.errors import ConfigError
from harness.figures.style import save
from harness.results.tables import RunResult

_KEY = "figures"


def write_own_figures(names: Sequence[str], result: RunResult, summary: Mapping[str, Any], folder: Path) -> list[Path]:
    """Call each function with the result and its summary, and save the figure that it returns under the function's
    name; None is no figure.

    Raises:
        ConfigError: a function fails, or returns something else.
    """
    written = []
    for name in names:
        function = find(_KEY, name)
        with errors_of(_KEY, name):
            figure = function(result, summary)
        if figure is not None and not isinstance(figure, Figure):
            raise ConfigError(
                f"{_KEY}={name!r}: returned {type(figure).__name__}; must be a matplotlib Figure, or None"
            )
        if figure is not None:
            written.append(save(figure, folder / f"{name.partition(':')[2]}.png"))
    return written
