"""Transfers between host and device: a plan's inputs in one copy, its sampled tokens back in another.

The host waits only for the tokens, when it asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.sampling.logit_edits import RowLogprobs

_ALIGNMENT = 128  # bytes; Triton loads 16 bytes at a time where a pointer is aligned to 16
_FIRST_BYTES = 1 << 16

Inputs = TypeVar("Inputs")


class Staging:
    """Copies all arrays of a plan's inputs to the device in one copy.

        arrays ──▶ | a | b  | c | pinned, one of two ──one copy──▶ | a | b  | c | on the device

    Two pinned buffers alternate. A pinned buffer is overwritten only after an event has shown that its last copy has
    ended. One buffer on the device is enough: the next copy into it runs on the same stream as the kernels that read
    the previous inputs, hence after them.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pinned = [_PinnedBuffer(device) for _ in range(2)]
        self._on_device = torch.empty(0, dtype=torch.uint8, device=device)

    def send(self, inputs: Inputs) -> Inputs:
        """A copy of the dataclass `inputs` in which a tensor on the device replaces each numpy array.

        Arrays in nested dataclasses are replaced too. The tensors are valid until the next call.
        """
        arrays = list(_arrays(inputs))
        starts = np.cumsum([0] + [-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays]).tolist()
        total = starts[-1]
        if total:
            self._copy(arrays, starts, total)
        views = (
            self._on_device[start : start + array.nbytes].view(_TORCH_DTYPES[array.dtype.name]).view(array.shape)
            for start, array in zip(starts, arrays, strict=False)
        )
        return _with_tensors(inputs, views)

    def _copy(self, arrays: list[NDArray[Any]], starts: list[int], total: int) -> None:
        self._pinned.reverse()
        pinned = self._pinned[0]
        host = pinned.writable(total)
        for start, array in zip(starts, arrays, strict=False):
            host[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if self._on_device.shape[0] < total:
            self._on_device = torch.empty(len(host), dtype=torch.uint8, device=self._device)
        pinned.copy_to(self._on_device, total)


class _PinnedBuffer:
    """Bytes on the host (page-locked where the device is a GPU), and whether they are still being copied."""

    def __init__(self, device: torch.device) -> None:
        self._pin = device.type == "cuda"
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._copied = torch.cuda.Event() if self._pin else None

    def writable(self, size: int) -> NDArray[np.uint8]:
        """At least `size` bytes; waits until their last copy to the device has ended."""
        if self._copied is not None:
            self._copied.synchronize()
        if self._bytes.shape[0] < size:
            self._bytes = torch.empty(max(_FIRST_BYTES, 2 * size), dtype=torch.uint8, pin_memory=self._pin)
        array: NDArray[np.uint8] = self._bytes.numpy()
        return array

    def copy_to(self, target: Tensor, size: int) -> None:
        target[:size].copy_(self._bytes[:size], non_blocking=True)
        if self._copied is not None:
            self._copied.record()


class TokenBuffer:
    """A plan's sampled tokens, on the device and in page-locked memory: int64[1 + max_steps, max_num_seqs].

    row 0           tokens sampled in chunks: of the prompts that the plan completes, and of decodes with drafts
    row 1 + step    tokens of the decode rows; `cursor`, on the device, is the number of the next step

    The device has one buffer, which the next plan writes after its copy to the host. The host has two, because the next
    plan may be launched before the tokens of this one are read.
    """

    def __init__(self, max_steps: int, max_num_seqs: int, device: torch.device) -> None:
        self._on_device = torch.zeros(1 + max_steps, max_num_seqs, dtype=torch.int64, device=device)
        is_cuda = device.type == "cuda"
        self._hosts = [torch.empty(self._on_device.shape, dtype=torch.int64, pin_memory=is_cuda) for _ in range(2)]
        self._copied = [torch.cuda.Event() if is_cuda else None for _ in range(2)]
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)

    @property
    def prompts(self) -> Tensor:
        """int64[max_num_seqs]: the tokens of completed prompts."""
        return self._on_device[0]

    @property
    def ring(self) -> Tensor:
        """int64[max_steps, max_num_seqs]: the tokens of the decode rows by step; row `cursor` is written next."""
        return self._on_device[1:]

    def rewind(self) -> None:
        """Set `cursor` to the first step."""
        self.cursor.zero_()

    def fetch(self, num_steps: int) -> Callable[[], NDArray[np.int64]]:
        """Launch the copy of the first `1 + num_steps` rows to the host.

        Returns a function that waits for the copy and returns the rows, int64[1 + num_steps, max_num_seqs]. It must be
        called before the second `fetch` after this one.
        """
        self._hosts.reverse()
        self._copied.reverse()
        host, copied = self._hosts[0][: 1 + num_steps], self._copied[0]
        host.copy_(self._on_device[: 1 + num_steps], non_blocking=True)
        if copied is not None:
            copied.record()

        def read() -> NDArray[np.int64]:
            if copied is not None:
                copied.synchronize()
            tokens: NDArray[np.int64] = host.numpy().copy()
            return tokens

        return read


_TORCH_DTYPES = {"int64": torch.int64, "int32": torch.int32, "float32": torch.float32}


def _arrays(inputs: object) -> Iterator[NDArray[Any]]:
    """The arrays of a dataclass and of the dataclasses, and tuples of them, in it, depth first."""
    for field in fields(inputs):  # type: ignore[arg-type]
        value = getattr(inputs, field.name)
        if isinstance(value, np.ndarray):
            yield value
        elif is_dataclass(value):
            yield from _arrays(value)
        elif isinstance(value, tuple):
            for item in value:
                yield from _arrays(item)


def _with_tensors(inputs: Any, tensors: Iterator[Tensor]) -> Any:
    """A copy of a dataclass whose arrays, in the order of `_arrays`, are replaced by `tensors`."""
    changes: dict[str, Any] = {}
    for field in fields(inputs):
        value = getattr(inputs, field.name)
        if isinstance(value, np.ndarray):
            changes[field.name] = next(tensors)
        elif is_dataclass(value):
            changes[field.name] = _with_tensors(value, tensors)
        elif isinstance(value, tuple):
            changes[field.name] = tuple(_with_tensors(item, tensors) for item in value)
    return replace(inputs, **changes)


def to_host(logprobs: RowLogprobs | None) -> RowLogprobs | None:
    """Launch the copies of log probabilities to the host."""
    return None if logprobs is None else RowLogprobs(*(each.to("cpu", non_blocking=True) for each in logprobs))


def as_arrays(logprobs: RowLogprobs | None) -> RowLogprobs | None:
    """Log probabilities on the host as numpy arrays."""
    return None if logprobs is None else RowLogprobs(*(each.numpy() for each in logprobs))
