"""One rank's copies of KV blocks: within the device, and between the device and host memory, beside steps.

    cache [layers, 2, blocks, ...] on the device ──▶ [blocks, layers, 2, ...] on the host
                                                 ◀──

On a GPU the host's memory is page-locked. All copies from and to the host run on one side stream, in the order of the
plans, and begin when the device has done what it was given before. The steps of a plan begin when its copies have
ended, but for those that run beside the steps (`TransferRun.is_beside`). A later plan waits for these when it says so
(`TransferInputs.awaited`), whether or not they had been reported to have ended.

A rank copies its own share of each block.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.core.kv.tiers.tier import DEVICE
from engine.runner.inputs.transfer_inputs import TransferInputs, TransferRun

Waited = list[tuple[Any, Any]]


class SideStream(Protocol):
    """Where copies run. A mark stands for all copies that were launched before it."""

    def launch(self, copy: Callable[[], None]) -> None:
        """Run `copy` after what the device was given before, and after the copies that were launched before."""

    def mark(self) -> Any: ...

    def has_passed(self, mark: Any) -> bool:
        """Whether all copies before the mark have ended."""

    def hold_steps(self, mark: Any) -> None:
        """Let the device wait for the mark before it does what it is given from now on."""

    def ns_between(self, first: Any, second: Any) -> int:
        """Time between two marks that have been passed."""


class Inline:
    """For the CPU: a copy is made at once."""

    def launch(self, copy: Callable[[], None]) -> None:
        copy()

    def mark(self) -> int:
        return time.perf_counter_ns()

    def has_passed(self, mark: int) -> bool:
        return True

    def hold_steps(self, mark: int) -> None:
        """There is nothing to wait for."""

    def ns_between(self, first: int, second: int) -> int:
        return second - first


class CudaStream:
    """A stream beside the current one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def launch(self, copy: Callable[[], None]) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            copy()

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def has_passed(self, mark: Any) -> bool:
        return bool(mark.query())

    def hold_steps(self, mark: Any) -> None:
        torch.cuda.current_stream(self._device).wait_event(mark)

    def ns_between(self, first: Any, second: Any) -> int:
        second.synchronize()
        return int(first.elapsed_time(second) * 1e6)


def side_stream(device: torch.device) -> SideStream:
    """Where the copies of a device run."""
    return CudaStream(device) if device.type == "cuda" else Inline()


class BlockTransfers:
    """Copies blocks of `cache`, [layers, 2, blocks, block_size, kv_heads, head_dim], and of `num_host_blocks` blocks
    of host memory.

    Attributes:
        landed: the number of the last copies beside steps that have ended, with all before them; as of `poll`.
    """

    def __init__(self, cache: Tensor, num_host_blocks: int, stream: SideStream) -> None:
        self._cache = cache.view(torch.uint8)  # as bytes, since torch copies and indexes few float8 tensors
        shape = (num_host_blocks, *self._cache[:, :, 0].shape)
        self._host = torch.empty(shape, dtype=torch.uint8, pin_memory=cache.is_cuda and num_host_blocks > 0)
        self._stream = stream
        self._beside: deque[tuple[int, Any]] = deque()  # numbers and marks of copies that may not have ended
        self.landed = 0

    def launch(self, transfers: TransferInputs, on_device: TransferInputs) -> Waited:
        """Launch the copies of a plan, given its inputs on the host and on the device.

        Returns the marks before and after each group of copies that the steps of the plan wait for.
        """
        waited: Waited = []
        self._await(transfers.awaited)
        is_beside = False
        for run, staged in zip(transfers.runs, on_device.runs, strict=True):
            if run.source_tier == run.target_tier == DEVICE:
                sources, targets = staged.blocks
                self._cache[:, :, targets] = self._cache[:, :, sources]
            elif run.is_beside:
                is_beside = True
                self._launch(run)
            else:
                first = self._stream.mark()
                self._launch(run)
                last = self._stream.mark()
                self._stream.hold_steps(last)
                waited.append((first, last))
        if is_beside:
            self._beside.append((transfers.number, self._stream.mark()))
        return waited

    def poll(self, waited: Waited) -> int:
        """Find out which copies have ended; returns how long the steps of a plan waited for copies, in ns."""
        while self._beside and self._stream.has_passed(self._beside[0][1]):
            self.landed, _ = self._beside.popleft()
        return sum(self._stream.ns_between(first, last) for first, last in waited)

    def _await(self, number: int) -> None:
        """Let what the device is given from now on wait for the copies beside earlier steps up to `number`."""
        marks = [mark for each, mark in list(self._beside) if each <= number]  # another thread may call `poll`
        if marks:
            self._stream.hold_steps(marks[-1])

    def _launch(self, run: TransferRun) -> None:
        pairs = run.blocks.T.tolist()

        def copy() -> None:
            for source, target in pairs:
                self._block(run.target_tier, target).copy_(self._block(run.source_tier, source), non_blocking=True)

        self._stream.launch(copy)

    def _block(self, tier: str, number: int) -> Tensor:
        """uint8[layers, 2, block_size, kv_heads, bytes]"""
        return self._cache[:, :, number] if tier == DEVICE else self._host[number]
