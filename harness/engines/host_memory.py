"""Memory of this process: a run that is sure to need more than there is is refused, as the system would otherwise end
it without a word."""

from __future__ import annotations

import gc
import mmap
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from harness.errors import ConfigError
from harness.results.stored.environment import available_memory_bytes

# Growth of the peak memory of simulations, tables and summary included, from 50,000 to 250,000 requests of one output
# token (closed loop, CPython 3.11, x86-64), and from 50,000 to 200,000 requests of trace=synthetic per step.
_BYTES_PER_REQUEST = 460
_BYTES_PER_STEP = 260
_BYTES_PER_BLOCK = 56  # peak while BlockPool is made
_GIB = 1 << 30
_SHARE_OF_TABLES = 0.9  # of the memory that a run takes: a step is recorded in 40 bytes, and its tables take 260


def check_memory(num_requests: int, num_output_tokens: int, max_num_seqs: int) -> None:
    """Raises ConfigError if the run needs more memory than is available, at the fewest steps that it can take."""
    steps = num_output_tokens // max_num_seqs
    needed = num_requests * _BYTES_PER_REQUEST + steps * _BYTES_PER_STEP
    available = available_memory_bytes()
    if available is not None and needed > available:
        raise ConfigError(
            f"trace: {num_requests:,} requests need at least {needed / _GIB:,.1f} GiB of memory and "
            f"{available / _GIB:,.1f} GiB are available; replay fewer (trace.num_requests or trace.limit)"
        )


def check_pool(num_blocks: int) -> None:
    """Raises ConfigError if a simulated pool of `num_blocks` blocks needs more memory than is available."""
    needed, available = num_blocks * _BYTES_PER_BLOCK, available_memory_bytes()
    if available is not None and needed > available:
        raise ConfigError(
            f"num_blocks: to simulate {num_blocks:,} blocks takes {needed / _GIB:,.1f} GiB of memory and "
            f"{available / _GIB:,.1f} GiB are available; set a larger block_size or fewer blocks"
        )


@contextmanager
def no_cycles() -> Iterator[None]:
    """The block makes no reference cycles, and none are looked for: among a million requests that takes a tenth of a
    run, and half of reading them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def kept_for_tables() -> Iterator[None]:
    """Keep memory free for the tables while the block records, so that a MemoryError in it leaves enough to write them.

    Only addresses are taken, no pages: this matters where the addresses are limited, and elsewhere costs nothing.
    """
    addresses = None
    with suppress(OSError, ValueError, OverflowError):
        addresses = mmap.mmap(-1, int(_SHARE_OF_TABLES * (available_memory_bytes() or 0)))
    try:
        yield
    finally:
        if addresses is not None:
            addresses.close()
