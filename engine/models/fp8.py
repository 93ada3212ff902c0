"""A rank's part of a float8 weight matrix: its parameters, and the checkpoint tensors that fill them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from engine.json_file import ModelError
from engine.models.checkpoint import FLOAT8, CheckpointTensor
from engine.models.quantization import Fp8Weights
from kernels.fp8_linear import dequantize_weight, fp8_linear
from kernels.kv_store import FP8_DTYPE


class Fp8Matrix(nn.Module):
    """A weight matrix [rows, columns] in e4m3, with a float32 scale for each of its blocks."""

    def __init__(self, rows: int, columns: int, fp8: Fp8Weights) -> None:
        super().__init__()
        self._fp8 = fp8
        self.block = fp8.matrix_block(columns)
        scales = torch.empty(-(-rows // self.block[0]), -(-columns // self.block[1]), dtype=torch.float32)
        self.weight = nn.Parameter(torch.empty(rows, columns, dtype=FP8_DTYPE), requires_grad=False)
        self.scales = nn.Parameter(scales, requires_grad=False)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """`x @ weight.T + bias`, `[T, columns] -> [T, rows]`."""
        return fp8_linear(x, self.weight, self.scales, self.block, bias)

    def dequantized(self) -> Tensor:
        """The weights times their scales, float32[rows, columns]."""
        return dequantize_weight(self.weight, self.scales, self.block)

    def checkpoint_tensors(
        self, name: str, shape: tuple[int, int], index: tuple[slice, slice], first_row: int = 0
    ) -> Iterator[CheckpointTensor]:
        """The slice `index` of the checkpoint matrix `name` of `shape`, to be the rows from `first_row` on.

        Raises:
            ModelError: the slice does not consist of whole blocks.
        """
        rows, columns = (range(*part.indices(size)) for part, size in zip(index, shape, strict=True))
        target, scales = self.weight[first_row : first_row + len(rows)], self._scales_of(first_row, len(rows))
        if self._fp8.block is not None:
            self._check_blocks(name, (rows, columns), shape, first_row)
        if self._fp8.scale_name is None:
            yield CheckpointTensor(f"{name}.weight", shape, index, target, scales=scales, block=self.block)
            return
        yield CheckpointTensor(f"{name}.weight", shape, index, target, dtypes=FLOAT8)
        scale_shape: tuple[int, ...] = ()
        scale_index: tuple[slice, ...] = ()
        if self._fp8.block is not None:
            pairs = tuple(zip(self._fp8.block, (rows, columns), shape, strict=True))
            scale_shape = tuple(-(-size // block) for block, _, size in pairs)
            scale_index = tuple(slice(part.start // block, -(-part.stop // block)) for block, part, _ in pairs)
        elif not self._fp8.per_tensor:
            scale_shape, scale_index = (shape[0], 1), index[:1]
        yield CheckpointTensor(f"{name}.{self._fp8.scale_name}", scale_shape, scale_index, scales, is_scale=True)

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
            raise ModelError(
                f"quantization=fp8_block: {name} has {sizes[cut[0]]} {cut[0]} on a rank, which are not whole blocks of "
                f"{height} x {width} weights; use quantization=fp8 or fewer ranks"
            )
