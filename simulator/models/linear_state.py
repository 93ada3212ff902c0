"""Attention with a state per sequence that each token updates: it reads no cache and grows with nothing.

    state of a head    key_dim x value_dim elements, split over the ranks by heads
    convolution        the last `kernel - 1` inputs of queries, keys and values, in the model's dtype

Sources: Qwen3-Next's gated delta net (https://arxiv.org/abs/2412.06464), Kimi Linear's delta attention
(https://arxiv.org/abs/2510.26692) and Mamba-2 (https://arxiv.org/abs/2405.21060), as transformers implements them.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.models.block import Block, Sizes, SmallKernels, Weights

_UPDATE = 6  # operations on an element of the state: decay, add the outer product, read with the query


@dataclass(frozen=True)
class LinearState(Block):
    """What the kinds share.

    Attributes:
        num_heads: of values; each has a state.
        num_key_heads: of queries and keys, or groups of Mamba-2.
        kernel: of the convolution, tokens.
        state_element_bytes: bytes of an element of the state.
        num_extras: parameters beside all that the kind has.
    """

    num_heads: int
    num_key_heads: int
    key_dim: int
    value_dim: int
    kernel: int = 4
    state_element_bytes: int = 4
    num_extras: int = 0

    @property
    def value_width(self) -> int:
        return self.num_heads * self.value_dim

    @property
    def convolved(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.num_key_heads * self.key_dim + self.value_width

    def num_vectors(self, model: Sizes) -> int:
        return model.hidden_size + self.convolved * self.kernel + self._own_vectors() + self.num_extras

    def _own_vectors(self) -> int:
        """Parameters of the kind beside matrices, the norm of the hidden state and the convolution."""
        raise NotImplementedError

    def state_bytes(self, model: Sizes, ranks: int) -> int:
        state = self.num_heads * self.key_dim * self.value_dim // ranks * self.state_element_bytes
        return state + self.convolved // ranks * (self.kernel - 1) * model.dtype_bytes

    def state_operations(self, ranks: int) -> int:
        return _UPDATE * self.num_heads * self.key_dim * self.value_dim // ranks

    def heads(self) -> tuple[int, ...]:
        return (self.num_heads,)

    def width(self, ranks: int) -> int:
        """Queries, keys and values before and after the convolution, and the output with its gate."""
        return (2 * self.convolved + 2 * self.value_width) // ranks

    def num_elements(self, model: Sizes, ranks: int) -> float:
        """The convolution, and the gated norm of the output."""
        return (2 * self.convolved + 3 * self.value_width) / ranks

    def small_kernels(self, model: Sizes, ranks: int) -> SmallKernels:
        """Two norms; tables of these kinds time the convolution with the state."""
        elements = 4 * model.hidden_size + 3 * self.value_width // ranks
        return SmallKernels(2, elements * model.dtype_bytes)


@dataclass(frozen=True)
class GatedDeltaNet(LinearState):
    """Of Qwen3-Next and Qwen3.5."""

    def matrices(self, model: Sizes, ranks: int) -> tuple[Weights, ...]:
        hidden = model.hidden_size
        return (
            Weights("qkvz_proj", "linear_attention", (self.convolved + self.value_width) // ranks, hidden),
            Weights("linear_o_proj", "linear_attention", hidden, self.value_width // ranks),
            Weights("ba_proj", "router", 2 * self.num_heads // ranks, hidden),
        )

    def _own_vectors(self) -> int:
        return 2 * self.num_heads + self.value_dim


@dataclass(frozen=True)
class KimiDelta(LinearState):
    """Of Kimi Linear: decay per channel, and a gate of the output, by matrices of rank `value_dim` each.

    Attributes:
        has_full_gate: whether the gate of the output has a full matrix.
    """

    has_full_gate: bool = False

    def matrices(self, model: Sizes, ranks: int) -> tuple[Weights, ...]:
        hidden, width, part = model.hidden_size, self.value_width // ranks, "linear_attention"
        decay = (
            Weights("decay_a_proj", part, self.value_dim, hidden),
            Weights("decay_b_proj", part, width, self.value_dim),
        )
        gate = (
            Weights("gate_a_proj", part, self.value_dim, hidden),
            Weights("gate_b_proj", part, width, self.value_dim),
        )
        return (
            Weights("linear_qkv_proj", part, self.convolved // ranks, hidden),
            Weights("linear_o_proj", part, hidden, width),
            *decay,
            *((Weights("gate_proj", part, width, hidden),) if self.has_full_gate else gate),
            Weights("beta_proj", "router", self.num_heads // ranks, hidden),
        )

    def _own_vectors(self) -> int:
        return self.num_heads + self.value_width + self.value_dim


@dataclass(frozen=True)
class Mamba2(LinearState):
    """Of Nemotron-H: `key_dim` is the size of the state, `num_key_heads` the number of groups.

    Attributes:
        has_bias: whether the convolution has biases.
    """

    has_bias: bool = True

    def matrices(self, model: Sizes, ranks: int) -> tuple[Weights, ...]:
        rows = self.convolved + self.value_width + self.num_heads
        return (
            Weights("mamba_in_proj", "linear_attention", rows // ranks, model.hidden_size),
            Weights("mamba_out_proj", "linear_attention", model.hidden_size, self.value_width // ranks),
        )

    def _own_vectors(self) -> int:
        return 3 * self.num_heads + self.value_width + (self.convolved if self.has_bias else 0)
