"""What each kind of attention and of MLP answers, so that memory and costs are sums over the blocks of a model.

A block is a norm of the hidden state, an attention or an MLP, and the sum of its output over the ranks. A layer of most
decoders is two blocks, one of each. The kinds:

    grouped_query   GroupedQuery    attention to all tokens or to a sliding window
    latent          Latent          attention to one compressed vector per token, or to the best of them (sparse)
    linear_state    GatedDeltaNet,  attention with a state of fixed size per sequence
                    KimiDelta,
                    Mamba2
    dense           Dense           an MLP
    experts         Experts         a mixture of experts, with experts that all tokens use
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from engine.engine_config import KVDtype
from simulator.models.weight_formats import Quantization


class Sizes(Protocol):
    """What a block reads of its model (`simulator.models.model`)."""

    @property
    def hidden_size(self) -> int: ...

    @property
    def dtype_bytes(self) -> int: ...

    @property
    def kv_dtype(self) -> KVDtype: ...

    @property
    def quantization(self) -> Quantization: ...


class Weights(NamedTuple):
    """Matrices of a block on one rank, all of one size.

    Attributes:
        name: of the operator that multiplies by them.
        part: of the model, which decides their format (`Model.format_of`).
        copies: how many there are: the experts.
        used: of these, how many a token uses on average.
    """

    name: str
    part: str
    rows: int
    columns: int
    copies: int = 1
    used: float = 1


def num_hit(copies: int, used: float, num_tokens: Any) -> Any:
    """How many of `copies` experts `num_tokens` tokens hit in expectation, of which each uses `used`; a number or an
    array, as `num_tokens` is."""
    return copies * (1 - (1 - used / copies) ** num_tokens)


class Scan(NamedTuple):
    """What attention does with the tokens of a context, on one rank.

    Attributes:
        token_bytes: that are read of each of them.
        pair_operations: for each of them and each token that attends to it.
        window: how many tokens at most; 0 for all.
        prompt_operations: as pair_operations, by tokens of a prompt; None where they do the same.
    """

    token_bytes: int
    pair_operations: int
    window: int = 0
    prompt_operations: int | None = None


class SmallKernels(NamedTuple):
    """Kernels of a block that only move bytes: how many, and the bytes per token that they move on one rank."""

    num_kernels: int
    num_bytes: int


class Block:
    """A kind of attention or of MLP; the methods with a default are those of a block without it."""

    is_attention = True
    kv_formula = ""  # of `kv_bytes` in a block of tokens, for people; {layers} stands for the layers
    rotary_dim = 0
    window = 0  # tokens after which the cache of a token is given back; 0 for never

    def matrices(self, model: Sizes, ranks: int) -> tuple[Weights, ...]:
        raise NotImplementedError

    def num_vectors(self, model: Sizes) -> int:
        """Parameters beside the matrices, which each rank holds in full: norms, biases."""
        return model.hidden_size

    def kv_bytes(self, model: Sizes, ranks: int) -> int:
        """Bytes that a token keeps in the cache of one rank."""
        return sum(scan.token_bytes for scan in self.scans(model, ranks))

    def scans(self, model: Sizes, ranks: int) -> tuple[Scan, ...]:
        return ()

    def state_bytes(self, model: Sizes, ranks: int) -> int:
        """Bytes that a running sequence keeps on one rank, however long it is."""
        return 0

    def state_operations(self, ranks: int) -> int:
        """Operations of a token on that state."""
        return 0

    def heads(self) -> tuple[int, ...]:
        """Numbers of which the number of ranks must divide each."""
        return ()

    def width(self, ranks: int) -> int:
        """Elements per token of the tensors that exist at once on one rank."""
        return 0

    def num_elements(self, model: Sizes, ranks: int) -> float:
        """Elements per token that kernels read and write beside the matrix products and the norm, in a rough count."""
        raise NotImplementedError

    def small_kernels(self, model: Sizes, ranks: int) -> SmallKernels:
        """The same by kernel, the norm included, with what fused kernels save."""
        raise NotImplementedError

    def kernels_with_attention(self, model: Sizes, ranks: int) -> SmallKernels:
        """Those of `small_kernels` that an engine saves whose attention turns queries and keys and stores the KV."""
        return SmallKernels(0, 0)
