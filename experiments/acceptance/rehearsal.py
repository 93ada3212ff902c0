"""Sections that go wrong, for rehearsals: one crashes, one hangs, one runs out of memory, all after a first result."""

from __future__ import annotations

import os
import resource
import signal
import time

import torch

from experiments.acceptance.common import Context


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
    """Ask for more memory than the process may have."""
    context.add("before memory runs out", "1")
    limit = 64 << 30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    torch.empty(2 * limit, dtype=torch.uint8)
