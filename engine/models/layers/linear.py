"""Layers of a tensor-parallel model. A layer holds one rank's slice of its weights, and `checkpoint_tensors` says which
slices of which checkpoint tensors these are.

A column-parallel layer splits its output features over the ranks, a row-parallel layer its input features, so that a
column-parallel layer followed by a row-parallel one needs one all-reduce. Projections that share their input are one
matrix here and several tensors in a checkpoint:

    checkpoint      q_proj [heads * D, H]    k_proj [kv_heads * D, H]    v_proj [kv_heads * D, H]
    this rank       [ its q rows ; its k rows ; its v rows ]   one matrix product

Weights are created on the default device in the default dtype, uninitialised; `engine.models.weights` fills them.
"""

from __future__ import annotations

import bisect
import itertools
from collections import abc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from engine.models.layers.checkpoint import CheckpointTensor
from engine.models.layers.fp8 import Fp8Matrix
from engine.models.layers.parallel import TensorParallel
from engine.models.quantization import Fp8Weights
from kernels.norm import add_rms_norm, rms_norm

# Numbers of tokens that oneDNN's kernels are compiled for; see `_packed_linear`.
PACKED_ROWS = (*range(1, 33), *range(40, 129, 8), *range(160, 513, 32), *range(576, 1025, 64))


class Layer(nn.Module):
    """A module with weights of its own."""

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        """The checkpoint tensors that fill this layer's parameters."""
        raise NotImplementedError


@dataclass(frozen=True)
class Rows:
    """Rows `[start, start + size)` of a checkpoint matrix of `total` rows; `name` is without `.weight` or `.bias`."""

    name: str
    total: int
    start: int
    size: int

    @classmethod
    def shard(cls, name: str, total: int, tp: TensorParallel) -> Rows:
        """This rank's share of the rows; `total` must be a multiple of the number of ranks."""
        size = total // tp.size
        return cls(name, total, tp.rank * size, size)

    def checkpoint_tensor(self, target: Tensor, kind: Literal["weight", "bias"] = "weight") -> CheckpointTensor:
        """These rows, to be copied to `target`: a weight `[size, columns]` or a bias `[size]`."""
        rest = target.shape[1:]
        index = (slice(self.start, self.start + self.size), *(slice(None) for _ in rest))
        return CheckpointTensor(f"{self.name}.{kind}", (self.total, *rest), index, target)


def kv_head_rows(name: str, num_kv_heads: int, head_dim: int, tp: TensorParallel) -> Rows:
    """This rank's rows of a key or value projection: an equal share of the heads, or one head that ranks share."""
    if tp.size <= num_kv_heads:
        return Rows.shard(name, num_kv_heads * head_dim, tp)
    head = tp.rank * num_kv_heads // tp.size
    return Rows(name, num_kv_heads * head_dim, head * head_dim, head_dim)


def parameter(*shape: int) -> nn.Parameter:
    """Uninitialised weights."""
    return nn.Parameter(torch.empty(*shape), requires_grad=False)


def matrix(rows: int, columns: int, fp8: Fp8Weights | None) -> nn.Parameter | Fp8Matrix:
    """Uninitialised weights `[rows, columns]`."""
    return parameter(rows, columns) if fp8 is None else Fp8Matrix(rows, columns, fp8)


class RMSNorm(Layer):
    """Root-mean-square norm over the last dimension."""

    def __init__(self, name: str, size: int, eps: float) -> None:
        super().__init__()
        self.name = name
        self.eps = eps
        self.weight = parameter(size)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)

    def add(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """`(norm(x + residual), x + residual)`; without a residual, `(norm(x), x)`."""
        if residual is None:
            return self(x), x
        return add_rms_norm(x, residual, self.weight, self.eps)

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        shape = tuple(self.weight.shape)
        yield CheckpointTensor(f"{self.name}.weight", shape, (slice(None),), self.weight, is_norm=True)


def linear(x: Tensor, weight: Tensor | Fp8Matrix, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias`, `[T, I] -> [T, O]`; the weight is `[O, I]` or comes from `packed`."""
    if isinstance(weight, Fp8Matrix):
        y: Tensor = weight(x, bias)
        return y
    if weight.is_mkldnn:
        pieces = [_packed_linear(piece, weight, bias) for piece in x.split(PACKED_ROWS[-1])]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    return F.linear(x, weight, bias)


def _packed_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`linear` of at most `PACKED_ROWS[-1]` tokens, padded to the next number of tokens in `PACKED_ROWS`.

    oneDNN compiles a kernel for every new number of tokens. Compiling takes 3 to 10 ms for the five matrices of a small
    model (measured on an AVX-512 CPU), longer than the step itself; padding keeps the number of kernels small.
    """
    num_tokens = x.shape[0]
    padding = PACKED_ROWS[bisect.bisect_left(PACKED_ROWS, num_tokens)] - num_tokens
    if padding:
        x = F.pad(x, (0, 0, 0, padding))
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y[:num_tokens] if padding else y


def packed(weight: Tensor) -> nn.Parameter:
    """A copy of a weight in oneDNN's own layout. A weight in the plain layout is copied to it in every call.

    oneDNN chooses the layout for 16 tokens; the result works for any number of tokens, but only in `linear`.
    """
    return nn.Parameter(torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 16), requires_grad=False)


class ColumnParallelLinear(Layer):
    """`[T, in_features] -> [T, sum of the parts' rows]`; the weight stacks the rows of `parts` in their order."""

    def __init__(
        self, in_features: int, parts: abc.Sequence[Rows], bias: bool = False, fp8: Fp8Weights | None = None
    ) -> None:
        super().__init__()
        self.parts = parts
        self.columns = in_features
        rows = sum(part.size for part in parts)
        self.weight = matrix(rows, in_features, fp8)
        self.bias = parameter(rows) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        sizes = [part.size for part in self.parts]
        if isinstance(self.weight, Fp8Matrix):
            for part, first_row in zip(self.parts, itertools.accumulate(sizes, initial=0), strict=False):
                index = (slice(part.start, part.start + part.size), slice(0, self.columns))
                yield from self.weight.part().checkpoint_tensors(
                    part.name, (part.total, self.columns), index, first_row
                )
        else:
            for part, target in zip(self.parts, self.weight.split(sizes), strict=True):
                yield part.checkpoint_tensor(target)
        if self.bias is not None:
            for part, target in zip(self.parts, self.bias.split(sizes), strict=True):
                yield part.checkpoint_tensor(target, "bias")


class RowParallelLinear(Layer):
    """`[T, in_features / ranks] -> [T, out_features]`, summed over the ranks."""

    def __init__(
        self,
        name: str,
        in_features: int,
        out_features: int,
        tp: TensorParallel,
        bias: bool = False,
        fp8: Fp8Weights | None = None,
    ) -> None:
        super().__init__()
        self.tp = tp
        self.name = name
        self.columns = in_features // tp.size
        self.rows = out_features
        self.weight = matrix(out_features, self.columns, fp8)
        self.bias = parameter(out_features) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.tp.all_reduce(linear(x, self.weight))
        return y if self.bias is None else y + self.bias

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        start = self.tp.rank * self.columns
        shape = (self.rows, self.columns * self.tp.size)
        index = (slice(0, self.rows), slice(start, start + self.columns))
        if isinstance(self.weight, Fp8Matrix):
            yield from self.weight.part().checkpoint_tensors(self.name, shape, index)
        else:
            yield CheckpointTensor(f"{self.name}.weight", shape, index, self.weight)
        if self.bias is not None:
            yield CheckpointTensor(f"{self.name}.bias", shape[:1], index[:1], self.bias)


def vocabulary_rows(name: str, vocab_size: int, tp: TensorParallel) -> Rows:
    """This rank's range of the vocabulary. All ranges are equal, but the last ones may be shorter or empty."""
    size = -(-vocab_size // tp.size)
    start = min(tp.rank * size, vocab_size)
    return Rows(name, vocab_size, start, min(size, vocab_size - start))


def vocabulary_weight(rows: Rows, hidden_size: int, tp: TensorParallel) -> nn.Parameter:
    """Weights of a range of the vocabulary, padded with rows of zeros so that every rank has the same shape."""
    weight = parameter(-(-rows.total // tp.size), hidden_size)
    weight[rows.size :].zero_()
    return weight


class VocabParallelEmbedding(Layer):
    """Token ids to vectors; each rank holds a range of the vocabulary."""

    def __init__(self, name: str, vocab_size: int, hidden_size: int, tp: TensorParallel) -> None:
        super().__init__()
        self.tp = tp
        self.rows = vocabulary_rows(name, vocab_size, tp)
        self.weight = vocabulary_weight(self.rows, hidden_size, tp)

    def forward(self, input_ids: Tensor) -> Tensor:
        """`int64[T] -> [T, hidden_size]`, the same on every rank."""
        if self.tp.size == 1:
            return F.embedding(input_ids, self.weight)
        local = input_ids - self.rows.start
        elsewhere = (local < 0) | (local >= self.rows.size)
        x = F.embedding(local.masked_fill(elsewhere, 0), self.weight)
        return self.tp.all_reduce(x.masked_fill_(elsewhere.unsqueeze(-1), 0))

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        yield self.rows.checkpoint_tensor(self.weight[: self.rows.size])


class VocabParallelHead(Layer):
    """Hidden states to logits; each rank computes the logits of its range of the vocabulary.

    Args:
        tied: the embedding whose weights the head uses; None if the head has its own weights.
    """

    def __init__(
        self, name: str, vocab_size: int, hidden_size: int, tp: TensorParallel, tied: VocabParallelEmbedding | None
    ) -> None:
        super().__init__()
        self.tp = tp
        self.rows = vocabulary_rows(name, vocab_size, tp)
        self.is_tied = tied is not None
        self.weight = vocabulary_weight(self.rows, hidden_size, tp) if tied is None else tied.weight

    def forward(self, hidden: Tensor) -> Tensor:
        """`[S, hidden_size] -> [S, vocab_size]`, contiguous, the same on every rank."""
        return self.tp.all_gather(linear(hidden, self.weight))[:, : self.rows.total].contiguous()

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        if not self.is_tied:
            yield self.rows.checkpoint_tensor(self.weight[: self.rows.size])
