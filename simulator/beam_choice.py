"""Which beam continues which in a simulation, where nobody scores tokens.

After every step each beam is replaced with probability `replacement`: it then continues another beam, any of them
equally likely; else it continues itself (the Moran model of population genetics). With 0, beams share the prompt only;
the larger the probability, the more recent is their last common token, and the more blocks they share.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engine.core.running.beams import in_place
from engine.core.sequence import Request

ChooseParents = Callable[[Request], list[int]]
"""Which beam each beam of a request continues, as `Scheduler.replace_beams` takes it."""


def keep_all(request: Request) -> list[int]:
    """Every beam continues itself."""
    return list(range(request.num_sequences))


class RandomParents:
    """Draws parents from `rng`, one step of one request after the other."""

    def __init__(self, replacement: float, rng: np.random.Generator) -> None:
        self._replacement = replacement
        self._rng = rng

    def __call__(self, request: Request) -> list[int]:
        parents = keep_all(request)
        replaced = np.flatnonzero(self._rng.random(len(parents)) < self._replacement).tolist()
        if not replaced:
            return parents
        for beam in replaced:
            other = int(self._rng.integers(len(parents) - 1))
            parents[beam] = other + (other >= beam)
        return [parents[child] for child in in_place(parents)]
