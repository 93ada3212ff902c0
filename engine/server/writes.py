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

    def write(self, pointers: int, count: int, events: int) -> None:
        """Make `count` writes; `pointers` and `events` are the addresses of pointers to them and of their results."""
        made = ctypes.c_long(self._call(self._submit, self._context, ctypes.c_long(count), ctypes.c_void_p(pointers)))
        if made.value > 0:
            self._call(self._get, self._context, made, made, ctypes.c_void_p(events), None)


class Batch:
    """A chunk for each of some descriptors, which is written once; threads take from them by turns."""

    def __init__(self, descriptors: abc.Sequence[int], chunks: abc.Sequence[bytes]) -> None:
        self.number = number = len(chunks)
        self._data = b"".join(chunks)
        sizes = np.fromiter(map(len, chunks), np.uint64, number)
        writes = self._writes = np.zeros(number, _WRITES)
        writes["number"] = np.arange(number)
        writes["what"] = _WRITE
        writes["descriptor"] = descriptors
        writes["size"] = sizes
        writes["address"] = np.frombuffer(self._data, np.uint8).ctypes.data + np.cumsum(sizes) - sizes
        self._pointers = (writes.ctypes.data + _WRITES.itemsize * np.arange(number)).astype(np.uint64)
        self._events = np.zeros(number, _EVENTS)
        self._events["number"] = np.arange(number)
        self._addresses = self._pointers.ctypes.data, self._events.ctypes.data
        self._turns = itertools.count(0, _EACH)  # a turn is taken in one step of the interpreter
        self._calls: list[tuple[int, int, int]] = []  # first write, begin and end in ns

    def work(self, queue: _Queue) -> None:
        """Make calls until none is left."""
        clock, number, calls, turns, write = time.monotonic_ns, self.number, self._calls, self._turns, queue.write
        pointers, events = self._addresses
        pointer_size, event_size = self._pointers.itemsize, self._events.itemsize
        while (first := next(turns)) < number:
            began_ns = clock()
            write(pointers + pointer_size * first, min(_EACH, number - first), events + event_size * first)
            calls.append((first, began_ns, clock()))

    def written(self) -> Written:
        """What became of the writes, when all threads have worked."""
        counts, times = np.zeros(self.number, np.int64), np.zeros(self.number, np.int64)
        counts[self._events["number"]] = np.maximum(self._events["result"], 0)
        for first, began_ns, ended_ns in self._calls:
            own = times[first : first + _EACH]
            own[:] = began_ns + (ended_ns - began_ns) * np.arange(1, len(own) + 1) // len(own)
        return Written(counts.tolist(), times.tolist())


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
        if self._helper is not None and batch.number >= _FEWEST:
            self._helper.begin(batch)
            batch.work(self._own)
            self._helper.wait()
        else:
            batch.work(self._own)
        return batch.written()

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
