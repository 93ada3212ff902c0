"""Writes to many sockets at once, each a few microseconds of the kernel's time and nothing of Python's.

A thread that sends a chunk to each of a thousand clients by a call per client takes the interpreter's time for each of
them, and no other thread can help it. Linux' `io_submit` takes a list of writes: the calls of `BatchedWrites` are of 16
writes each, and two threads make them by turns, so that a second core helps where it is free.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import platform
import sys
import threading
import time
import weakref
from collections import abc
from typing import NamedTuple

import numpy as np

_EACH = 16  # writes of a call: few, since a thread that loses its core holds up all of its call
_FEWEST = 64  # writes that are worth a second thread
_CALLS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}  # io_setup, io_destroy, io_submit, io_getevents
_WRITE = 1  # IOCB_CMD_PWRITE
_WRITES = np.dtype(
    [("number", "u8"), ("key", "u4"), ("flags", "i4"), ("what", "u2"), ("priority", "i2"), ("descriptor", "u4"),
     ("address", "u8"), ("size", "u8"), ("offset", "i8"), ("reserved", "u8"), ("more", "u8")]
)  # fmt: skip
_EVENTS = np.dtype([("number", "u8"), ("write", "u8"), ("result", "i8"), ("more", "i8")])


class Written(NamedTuple):
    """What became of some writes.

    Attributes:
        counts: bytes that the kernel took of each; fewer than were given where a client is slow or gone.
        times_ns: when, by `time.monotonic_ns`; those of a call are spread evenly over its time.
    """

    counts: list[int]
    times_ns: list[int]


class _Queue:
    """The writes of one thread.

    Raises:
        OSError: the kernel has none, or does not give one.
    """

    def __init__(self) -> None:
        setup, destroy, submit, events = _CALLS[platform.machine()]
        call = ctypes.CDLL(None).syscall
        call.restype = ctypes.c_long
        context = ctypes.c_ulong(0)
        if call(setup, _EACH, ctypes.byref(context)):
            raise OSError("io_setup")
        weakref.finalize(self, call, destroy, context)
        self._call, self._submit, self._get, self._context = call, submit, events, context
        self._events = np.zeros(_EACH, _EVENTS)
        self._found = ctypes.c_void_p(self._events.ctypes.data)

    def write(self, address: int, count: int) -> list[tuple[int, int]]:
        """Make `count` writes, whose pointers begin at `address`; returns the numbers and results of those made."""
        made = self._call(self._submit, self._context, ctypes.c_long(count), ctypes.c_void_p(address))
        if made <= 0:
            return []
        number = ctypes.c_long(made)
        found = self._call(self._get, self._context, number, number, self._found, None)
        events = self._events[:found]
        return list(zip(events["number"].tolist(), events["result"].tolist(), strict=True))


class Batch:
    """A chunk for each of some descriptors, which is written once; threads take from them by turns."""

    def __init__(self, descriptors: abc.Sequence[int], chunks: abc.Sequence[bytes]) -> None:
        number = len(chunks)
        self.counts = [0] * number
        self.times_ns = [0] * number
        self._data = b"".join(chunks)
        sizes = np.fromiter(map(len, chunks), np.uint64, number)
        writes = self._writes = np.zeros(number, _WRITES)
        writes["number"] = np.arange(number)
        writes["what"] = _WRITE
        writes["descriptor"] = descriptors
        writes["size"] = sizes
        writes["address"] = np.frombuffer(self._data, np.uint8).ctypes.data + np.cumsum(sizes) - sizes
        self._pointers = (writes.ctypes.data + _WRITES.itemsize * np.arange(number)).astype(np.uint64)
        self._address = self._pointers.ctypes.data
        self._turns = itertools.count(0, _EACH)  # a turn is taken in one step of the interpreter

    def work(self, queue: _Queue) -> None:
        """Make calls until none is left."""
        clock, counts = time.monotonic_ns, self.counts
        while (first := next(self._turns)) < len(counts):
            count = min(_EACH, len(counts) - first)
            started_ns = clock()
            results = queue.write(self._address + 8 * first, count)
            each_ns = (clock() - started_ns) // count
            self.times_ns[first : first + count] = [started_ns + each_ns * (i + 1) for i in range(count)]
            for number, result in results:
                counts[number] = max(result, 0)


class BatchedWrites:
    """Makes batches of writes to sockets that do not block; for one thread at a time.

    Raises:
        OSError: not on this system.
    """

    def __init__(self) -> None:
        if sys.platform != "linux" or platform.machine() not in _CALLS:
            raise OSError(f"no io_submit on {sys.platform} {platform.machine()}")
        self._own = _Queue()
        self._helper = _Helper(_Queue()) if len(os.sched_getaffinity(0)) > 1 else None

    def write(self, batch: Batch) -> Written:
        """Make the writes of a batch, whose descriptors are still those of the same sockets."""
        if self._helper is not None and len(batch.counts) >= _FEWEST:
            self._helper.begin(batch)
            batch.work(self._own)
            self._helper.wait()
        else:
            batch.work(self._own)
        return Written(batch.counts, batch.times_ns)

    def close(self) -> None:
        """End the second thread."""
        if self._helper is not None:
            self._helper.close()


def batched_writes() -> BatchedWrites | None:
    """None where the system has no such calls, or forbids them."""
    try:
        return BatchedWrites()
    except OSError:
        return None


class _Helper:
    """A second thread for batches."""

    def __init__(self, queue: _Queue) -> None:
        self._queue = queue
        self._batch: Batch | None = None
        self._begins, self._ends = threading.Lock(), threading.Lock()
        self._begins.acquire()
        self._ends.acquire()
        self._thread = threading.Thread(target=self._run, name="writes", daemon=True)
        self._thread.start()

    def begin(self, batch: Batch) -> None:
        self._batch = batch
        self._begins.release()

    def wait(self) -> None:
        self._ends.acquire()

    def close(self) -> None:
        self._batch = None
        self._begins.release()
        self._thread.join()

    def _run(self) -> None:
        while self._begins.acquire() and self._batch is not None:
            self._batch.work(self._queue)
            self._ends.release()
