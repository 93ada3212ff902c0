"""A gated MLP that all tokens use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulator.models.block import Block, SmallKernels, Weights

if TYPE_CHECKING:
    from simulator.models.model import Model


@dataclass(frozen=True)
class Dense(Block):
    """An MLP of `intermediate_size`."""

    intermediate_size: int

    is_attention = False

    def matrices(self, model: Model, ranks: int) -> tuple[Weights, ...]:
        width = self.intermediate_size // ranks
        return (
            Weights("gate_up_proj", "mlp", 2 * width, model.hidden_size),
            Weights("down_proj", "mlp", model.hidden_size, width),
        )

    def width(self, ranks: int) -> int:
        """Gate, up and their product."""
        return 3 * self.intermediate_size // ranks

    def num_elements(self, model: Model, ranks: int) -> float:
        return 3 * self.intermediate_size / ranks

    def small_kernels(self, model: Model, ranks: int) -> SmallKernels:
        """The norm, and the activation."""
        return SmallKernels(2, (4 * model.hidden_size + self.width(ranks)) * model.dtype_bytes)
