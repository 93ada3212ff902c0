"""A mixture of experts: gated MLPs of which each token uses some, chosen by a router."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulator.models.block import Block, SmallKernels, Weights

if TYPE_CHECKING:
    from simulator.models.model import Model


@dataclass(frozen=True)
class Experts(Block):
    """`num_experts` MLPs of `intermediate_size`, of which a token uses `num_used`."""

    num_experts: int
    num_used: int
    intermediate_size: int

    is_attention = False

    def matrices(self, model: Model, ranks: int) -> tuple[Weights, ...]:
        """The router is on every rank."""
        width, hidden, counts = self.intermediate_size // ranks, model.hidden_size, (self.num_experts, self.num_used)
        return (
            Weights("router", "router", self.num_experts, hidden),
            Weights("experts", "experts", 2 * width, hidden, *counts),
            Weights("experts", "experts", hidden, width, *counts),
        )

    def num_elements(self, model: Model, ranks: int) -> float:
        return 3 * self.intermediate_size * self.num_used / ranks

    def small_kernels(self, model: Model, ranks: int) -> SmallKernels:
        """The norm: the experts' kernel contains their activation."""
        return SmallKernels(1, 4 * model.hidden_size * model.dtype_bytes)

    def buffer_bytes(self, model: Model, num_tokens: int, ranks: int) -> int:
        """Bytes of the buffers of Triton's experts: routed rows, as wide as the wider of input and output.

        Experts in a format of their own (MXFP4) run in other kernels, which keep no such buffers.
        """
        if model.quantization.experts_only:
            return 0
        width, hidden = self.intermediate_size // ranks, model.hidden_size
        rows = num_tokens * self.num_used
        return rows * (max(width, hidden) + max(2 * width, hidden)) * model.dtype_bytes
