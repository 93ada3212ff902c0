"""What a claim is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from matplotlib.figure import Figure

from experiments.claims.lab import Lab
from harness.config.schema.tasks.plotting import PlotConfig

Data = dict[str, Any]
"""What was measured, as JSON can hold it."""


class Verdict(NamedTuple):
    """The outcome in plain sentences.

    Attributes:
        holds: whether the claim holds.
        measured: the figures, simulated and measured.
        until: where the claim stops to hold.
    """

    holds: Literal["yes", "partly", "no"]
    measured: str
    until: str


@dataclass(frozen=True)
class Claim:
    """One claim of the literature.

    Attributes:
        title: a few words.
        says: the claim itself.
        source: who makes it.
        measure: runs what is needed; its result is stored.
        judge: the verdict on what was measured.
        draw: the figure of what was measured, as wide as the settings of plots say.
    """

    title: str
    says: str
    source: str
    measure: Callable[[Lab], Data]
    judge: Callable[[Data], Verdict]
    draw: Callable[[Data, PlotConfig], Figure]
