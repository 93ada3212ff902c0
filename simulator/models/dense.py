"""An MLP that all tokens use."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.models.block import Block, Sizes, SmallKernels, Weights


@dataclass(frozen=True)
class Dense(Block):
    """Attributes:
    is_gated: whether a gate multiplies what the MLP projects up.
    num_extras: parameters beside matrices and the norm of the hidden state.
    """

    intermediate_size: int
    is_gated: bool = True
    num_extras: int = 0

    is_attention = False

    def matrices(self, model: Sizes, ranks: int) -> tuple[Weights, ...]:
        width = self.intermediate_size // ranks
        return (
            Weights("gate_up_proj", "mlp", width * (2 if self.is_gated else 1), model.hidden_size),
            Weights("down_proj", "mlp", model.hidden_size, width),
        )

    def num_vectors(self, model: Sizes) -> int:
        return model.hidden_size + self.num_extras

    def width(self, ranks: int) -> int:
        """Gate, up and their product."""
        return (3 if self.is_gated else 2) * self.intermediate_size // ranks

    def num_elements(self, model: Sizes, ranks: int) -> float:
        return (3 if self.is_gated else 2) * self.intermediate_size / ranks

    def small_kernels(self, model: Sizes, ranks: int) -> SmallKernels:
        """The norm, and the activation."""
        return SmallKernels(2, (4 * model.hidden_size + self.width(ranks)) * model.dtype_bytes)
