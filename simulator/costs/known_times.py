"""Times that were computed before, by the number of tokens or sequences that they are for."""

from __future__ import annotations

from array import array


class KnownTimes:
    """Times in ns by a count; 0 where none is known.

    They are in an array: in a dict they would be objects of their own, which take the places of requests that have
    ended, so that the memory of hundreds of thousands of requests could not be given back.
    """

    def __init__(self) -> None:
        self._times = array("d")

    def get(self, count: int) -> float:
        times = self._times
        return times[count] if count < len(times) else 0.0

    def keep(self, count: int, time: float) -> None:
        times = self._times
        if count >= len(times):
            times.frombytes(bytes(times.itemsize * (count + 1)))
        times[count] = time
