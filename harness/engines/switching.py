"""How soon a thread of Python gets its turn."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_SWITCH_S = 5e-5  # how long Python lets a thread go on when another waits; 5 ms is longer than a step


@contextmanager
def quick_switches() -> Iterator[None]:
    """The thread of an engine gives way soon to the one that takes requests in and tells what came out."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
