"""A rank's part of float8 weights, of a matrix or of one per expert: parameters, and the tensors that fill them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engine.json_file import ModelError
from engine.models.layers.checkpoint import FLOAT8, CheckpointTensor
from engine.models.quantization import Fp8Weights
from kernels.cache.kv_store import FP8_DTYPE
from kernels.experts.expert_products import Fp8Stack
from kernels.linear.fp8_linear import fp8_linear
from kernels.linear.fp8_numbers import dequantize_weight


class Fp8Matrix(nn.Module):
    """A weight matrix [rows, columns] in e4m3, with a float32 scale for each of its blocks."""

    def __init__(self, rows: int, columns: int, fp8: Fp8Weights) -> None:
        super().__init__()
        self._fp8 = fp8
        self.block = fp8.matrix_block(columns)
        self.weight, self.scales = _parameters((), rows, columns, self.block)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """`x @ weight.T + bias`, `[T, columns] -> [T, rows]`."""
        return fp8_linear(x, self.weight, self.scales, self.block, bias)

    def dequantized(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weights times their scales, [rows, columns]."""
        return dequantize_weight(self.weight, self.scales, self.block).to(dtype)

    def part(self) -> Fp8Part:
        return Fp8Part(self.weight, self.scales, self._fp8, self.block)


class Fp8Experts(nn.Module):
    """A weight matrix [rows, columns] per expert, in e4m3, with a float32 scale for each of its blocks."""

    def __init__(self, num_experts: int, rows: int, columns: int, fp8: Fp8Weights) -> None:
        super().__init__()
        self._fp8 = fp8
        self.block = fp8.matrix_block(columns)
        self.weight, self.scales = _parameters((num_experts,), rows, columns, self.block)

    def stack(self) -> Fp8Stack:
        """As `fused_moe` takes them."""
        return Fp8Stack(self.weight, self.scales, self.block)

    def dequantized(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weights times their scales, [experts, rows, columns]; needs the memory of one expert in float32 more."""
        wide = torch.empty(self.weight.shape, dtype=dtype, device=self.weight.device)
        for each, weight, scales in zip(wide, self.weight, self.scales, strict=True):
            each.copy_(dequantize_weight(weight, scales, self.block))
        return wide

    def part(self, expert: int) -> Fp8Part:
        return Fp8Part(self.weight[expert], self.scales[expert], self._fp8, self.block)


def _parameters(
    experts: tuple[int, ...], rows: int, columns: int, block: tuple[int, int]
) -> tuple[nn.Parameter, nn.Parameter]:
    """Uninitialised weights and scales."""
    weight = torch.empty(*experts, rows, columns, dtype=FP8_DTYPE)
    scales = torch.empty(*experts, -(-rows // block[0]), -(-columns // block[1]), dtype=torch.float32)
    return nn.Parameter(weight, requires_grad=False), nn.Parameter(scales, requires_grad=False)


@dataclass(frozen=True)
class Fp8Part:
    """A float8 matrix [rows, columns] as views of a layer's parameters: its weights and their scales."""

    weight: Tensor
    scales: Tensor
    fp8: Fp8Weights
    block: tuple[int, int]

    def checkpoint_tensors(
        self, name: str, shape: tuple[int, int], index: tuple[slice, slice], first_row: int = 0
    ) -> Iterator[CheckpointTensor]:
        """The slice `index` of the checkpoint matrix `name` of `shape`, to be the rows from `first_row` on.

        Raises:
            ModelError: the slice does not consist of whole blocks.
        """
        rows, columns = (range(*part.indices(size)) for part, size in zip(index, shape, strict=True))
        target, scales = self.weight[first_row : first_row + len(rows)], self._scales_of(first_row, len(rows))
        if self.fp8.block is not None:
            self._check_blocks(name, (rows, columns), shape, first_row)
        if self.fp8.scale_name is None:
            yield CheckpointTensor(f"{name}.weight", shape, index, target, scales=scales, block=self.block)
            return
        yield CheckpointTensor(f"{name}.weight", shape, index, target, dtypes=FLOAT8)
        scale_shape: tuple[int, ...] = ()
        scale_index: tuple[slice, ...] = ()
        if self.fp8.block is not None:
            pairs = tuple(zip(self.fp8.block, (rows, columns), shape, strict=True))
            scale_shape = tuple(-(-size // block) for block, _, size in pairs)
            scale_index = tuple(slice(part.start // block, -(-part.stop // block)) for block, part, _ in pairs)
        elif not self.fp8.per_tensor:
            scale_shape, scale_index = (shape[0], 1), index[:1]
        yield CheckpointTensor(f"{name}.{self.fp8.scale_name}", scale_shape, scale_index, scales, is_scale=True)

    def _scales_of(self, first_row: int, size: int) -> Tensor:
        height = self.block[0]
        return self.scales[first_row // height : -(-(first_row + size) // height)]

    def _check_blocks(self, name: str, parts: tuple[range, range], shape: tuple[int, int], first_row: int) -> None:
        """Blocks of a rank's part may be cut at the edge of the whole matrix only, and there at the end of this one."""
        rows, columns = parts
        height, width = self.block
        ends = {"rows": (rows.stop, height, shape[0]), "columns": (columns.stop, width, shape[1])}
        cut = [what for what, (stop, block, size) in ends.items() if stop % block and stop < size]
        cut += ["rows"] if rows.start % height or first_row % height else []
        cut += ["columns"] if columns.start % width else []
        is_last = first_row + len(rows) == self.weight.shape[0]
        cut += ["rows"] if len(rows) % height and not is_last else []
        if cut:
            sizes = {"rows": len(rows), "columns": len(columns)}
            other = "quantization=fp8 or " if self.fp8.scale_name is None else ""  # a checkpoint's own blocks stay
            raise ModelError(
                f"quantization=fp8_block: {name} has {sizes[cut[0]]} {cut[0]} on a rank, which are not whole blocks of "
                f"{height} x {width} weights; use {other}fewer ranks"
            )
