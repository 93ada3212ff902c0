"""What a layer needs of a checkpoint: tensors, the slices of them that a rank holds, and where these go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from kernels.linear.fp8_numbers import quantize_weight

FLOATS = ("F32", "BF16", "F16")
FLOAT8 = ("F8_E4M3",)


@dataclass(frozen=True)
class CheckpointTensor:
    """A tensor of a checkpoint, and the slice of it that this rank holds.

    Attributes:
        name: the tensor's name in Hugging Face's checkpoints.
        shape: shape of the full tensor.
        index: for every dimension, the slice that this rank reads.
        target: the part of a parameter that the slice is copied to.
        is_norm: whether the tensor is a norm's weight, which is all ones in a model with random weights.
        dtypes: dtypes that the tensor may have in the checkpoint, by safetensors' names.
        is_scale: whether it has the scales of a weight; dimensions of size 1 may then be missing, and a single scale
            fills the target.
        scales: where the scales go, if the slice is quantised as it is loaded; None otherwise.
        block: rows and columns that share one of these scales.
        store: stores the slice in the target, where it is not only copied.
    """

    name: str
    shape: tuple[int, ...]
    index: tuple[slice, ...]
    target: Tensor
    is_norm: bool = False
    dtypes: tuple[str, ...] = FLOATS
    is_scale: bool = False
    scales: Tensor | None = None
    block: tuple[int, int] = (1, 1)
    store: Callable[[Tensor], None] | None = None

    def has_shape(self, shape: tuple[int, ...]) -> bool:
        """Whether the tensor may have `shape` in the checkpoint."""
        if not self.is_scale:
            return shape == self.shape
        return [size for size in shape if size > 1] == [size for size in self.shape if size > 1]

    def fill(self, values: Tensor) -> None:
        """Store the slice of the checkpoint."""
        if self.store is not None:
            self.store(values)
            return
        if self.scales is not None:
            values, scales = quantize_weight(values.to(self.target.device), self.block)
            self.scales.copy_(scales)
        elif self.is_scale:
            values = values.reshape(self.target.shape if values.numel() == self.target.numel() else (1, 1))
        self.target.copy_(values)
