"""Tensor parallelism: a rank's place in its group, and the collectives that layers and sampling need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# Older versions of torch have it under the second name only.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class TensorParallel:
    """One rank of a tensor-parallel group; by default a group of one rank, whose collectives return their input.

    Attributes:
        rank: 0..size-1.
        size: number of ranks that share the model.
        group: a `torch.distributed` process group of that size (gloo on CPU, NCCL on CUDA); None is the default group.
        on_collective: called before the rank enters a collective.
    """

    rank: int = 0
    size: int = 1
    group: Any = None
    on_collective: Callable[[], None] = _nothing

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank={self.rank} must be in 0..tensor_parallel_size-1={self.size - 1}")

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum of `x` over the ranks, written into `x` (any shape, contiguous)."""
        if self.size > 1:
            self.on_collective()
            dist.all_reduce(x, group=self.group)
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """The ranks' `[rows, columns]` side by side, in rank order: `[rows, size * columns]`."""
        if self.size == 1:
            return x
        self.on_collective()
        rows, columns = x.shape
        gathered = torch.empty(self.size * rows, columns, dtype=x.dtype, device=x.device)
        _all_gather(gathered, x.contiguous(), group=self.group)
        return gathered.view(self.size, rows, columns).transpose(0, 1).reshape(rows, self.size * columns)

    def from_rank_0(self, x: Tensor) -> Tensor:
        """Rank 0's `x` on every rank, written into `x` (any shape, contiguous)."""
        if self.size > 1:
            self.on_collective()
            dist.broadcast(x, group=self.group, group_src=0)
        return x
