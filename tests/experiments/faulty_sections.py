"""Sections of the acceptance that go wrong after a first result."""

from __future__ import annotations

import os
import signal
import time

from experiments.acceptance.context import Context, SkippedError


def crash(context: Context) -> None:
    """End the process as a fault in a kernel's driver would."""
    context.add("before the crash", "1")
    os.abort()


def hang(context: Context) -> None:
    """Wait forever, deaf to requests to end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    context.add("before it hangs", "1")
    time.sleep(1e6)


def exhaust(context: Context) -> None:
    context.add("before memory runs out", "1")
    raise MemoryError("no more")


def skip(context: Context) -> None:
    raise SkippedError("not installed")
