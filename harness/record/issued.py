"""What a recorder is told of a request that a replay has issued."""

from __future__ import annotations

from typing import NamedTuple


class Issued(NamedTuple):
    """An issued request: its row, its intended arrival and the time at which it was issued, in ns."""

    row: int
    arrival_ns: int
    issued_ns: int
