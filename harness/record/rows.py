"""Rows of whole numbers, which a run adds one by one: millions, and of many servers in turns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_PIECE = 128  # rows


class Rows:
    """Rows of `width` numbers. They are joined piece by piece: one array for all would move as it grows, and what grows
    beside those of other servers moves often."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._pieces: list[bytes | bytearray] = []
        self._recent: list[bytes] = []

    def add(self, row: bytes) -> None:
        """Add a row of packed int64."""
        recent = self._recent
        recent.append(row)
        if len(recent) == _PIECE:
            self._pieces.append(b"".join(recent))
            recent.clear()

    def matrix(self) -> NDArray[np.int64]:
        """All rows, as they are until the next is added: int64[n, width]."""
        if self._recent or len(self._pieces) != 1:
            self._pieces = [bytearray().join([*self._pieces, *self._recent])]
            self._recent.clear()
        return np.frombuffer(self._pieces[0], dtype=np.int64).reshape(-1, self._width)

    def keep(self, count: int) -> None:
        """Remove all rows but the first `count`."""
        rows = self.matrix()
        if len(rows) > count:
            self._pieces = [bytearray(rows[:count].tobytes())]
