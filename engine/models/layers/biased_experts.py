"""gpt-oss' experts, which have biases and whose tensors hold all experts of a layer, in floats or in MXFP4.

checkpoint, floats     gate_up_proj [E, H, 2I]      down_proj [E, I, H]       gate and up in turns
checkpoint, MXFP4      gate_up_proj_blocks          down_proj_blocks          two numbers of 4 bits in a byte
                       [E, 2I, H / 32, 16]          [E, H, I / 32, 16]
                       gate_up_proj_scales          down_proj_scales          a power of two for 32 numbers
                       [E, 2I, H / 32]              [E, H, I / 32]
this rank              w13 [E, 2I', H]              w2 [E, H, I']             all gates, then all ups
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from engine.models.layers.checkpoint import FLOATS, CheckpointTensor
from engine.models.layers.linear import Layer, parameter
from engine.models.layers.parallel import TensorParallel
from engine.models.model_config import ModelConfig
from kernels.activation import Clamp
from kernels.experts.moe import Biases, fused_moe

MXFP4_GROUP = 32  # numbers that share a scale
_BYTES = ("U8",)
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_NUMBERS = torch.tensor([*_MAGNITUDES, *(-each for each in _MAGNITUDES)])


def unpack_mxfp4(blocks: Tensor) -> Tensor:
    """The numbers in bytes [..., groups, 16], float32[..., 32 * groups], not scaled; the low four bits come first."""
    pairs = torch.stack((_NUMBERS[(blocks & 15).int()], _NUMBERS[(blocks >> 4).int()]), -1)
    return pairs.flatten(-3)


def mxfp4_scales(exponents: Tensor) -> Tensor:
    """The factors of the numbers, float32[..., 32 * groups], of bytes [..., groups], which are exponents + 127."""
    ones = torch.ones(exponents.shape)
    return torch.ldexp(ones, exponents.int() - 127).repeat_interleave(MXFP4_GROUP, -1)


class BiasedExperts(Layer):
    """A mixture of gated MLPs with biases; the ranks split I, the width of an expert."""

    def __init__(self, name: str, config: ModelConfig, tp: TensorParallel) -> None:
        super().__init__()
        assert config.clamped_gate is not None
        self.name = name
        self.tp = tp
        self.is_mxfp4 = config.mxfp4
        self.clamp = Clamp(config.clamped_gate.alpha, config.clamped_gate.limit)
        self.total = config.moe_intermediate_size
        experts, hidden, self.size = config.num_experts, config.hidden_size, self.total // tp.size
        self.w13 = parameter(experts, 2 * self.size, hidden)
        self.w2 = parameter(experts, hidden, self.size)
        self.b13 = parameter(experts, 2 * self.size)
        self.b2 = parameter(experts, hidden)

    def forward(self, x: Tensor, router_logits: Tensor, top_k: int, renormalize: bool) -> Tensor:
        """This rank's part of `fused_moe`, `[T, H] -> [T, H]`, to be summed over the ranks."""
        biases = Biases(self.b13, self.b2, self.clamp)
        return fused_moe(x, router_logits, self.w13, self.w2, top_k, renormalize, biases)

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        yield from self._mxfp4_tensors() if self.is_mxfp4 else self._float_tensors()
        experts, hidden, _ = self.w2.shape
        shape, index = (experts, 2 * self.total), (slice(None), self._part(2))
        yield self._tensor("gate_up_proj_bias", shape, index, self.b13, in_turns)
        # The parts of the ranks are summed, so that only one of them may have this bias.
        has_bias = float(self.tp.rank == 0)
        yield self._tensor("down_proj_bias", (experts, hidden), (), self.b2, lambda values: values * has_bias)

    def _float_tensors(self) -> Iterator[CheckpointTensor]:
        experts, hidden, _ = self.w2.shape
        shape, index = (experts, hidden, 2 * self.total), (slice(None), slice(None), self._part(2))
        yield self._tensor("gate_up_proj", shape, index, self.w13, lambda values: in_turns(values.T))
        shape, index = (experts, self.total, hidden), (slice(None), self._part(1), slice(None))
        yield self._tensor("down_proj", shape, index, self.w2, lambda values: values.T)

    def _mxfp4_tensors(self) -> Iterator[CheckpointTensor]:
        """The numbers, then the scales that they are multiplied by. A rank reads down_proj and keeps its columns,
        which need not be whole groups."""
        experts, hidden, _ = self.w2.shape
        share = self._part(1)
        up, down = (experts, 2 * self.total, hidden // MXFP4_GROUP), (experts, hidden, self.total // MXFP4_GROUP)
        for end, more, convert, multiplies in (
            ("blocks", (MXFP4_GROUP // 2,), unpack_mxfp4, False),
            ("scales", (), mxfp4_scales, True),
        ):
            yield self._tensor(
                f"gate_up_proj_{end}", (*up, *more), (slice(None), self._part(2)), self.w13,
                partial(_converted_rows, convert), multiplies=multiplies, dtypes=_BYTES,
            )  # fmt: skip
            yield self._tensor(
                f"down_proj_{end}", (*down, *more), (), self.w2,
                partial(_converted_columns, convert, share), multiplies=multiplies, dtypes=_BYTES,
            )  # fmt: skip

    def _part(self, rows: int) -> slice:
        """This rank's part of a dimension with `rows` rows for each of an expert's I."""
        return slice(rows * self.tp.rank * self.size, rows * (self.tp.rank + 1) * self.size)

    def _tensor(
        self,
        name: str,
        shape: tuple[int, ...],
        index: tuple[slice, ...],
        target: Tensor,
        convert: Callable[[Tensor], Tensor],
        *,
        multiplies: bool = False,
        dtypes: tuple[str, ...] = FLOATS,
    ) -> CheckpointTensor:
        """The slice `index`, with all of further dimensions, of a tensor of all experts, converted for each of them."""

        def store(values: Tensor) -> None:
            for to, each in zip(target, values, strict=True):  # one after the other, to save memory
                converted = convert(each).to(to.device)
                to.copy_(to.float() * converted if multiplies else converted)

        whole = (slice(None),) * (len(shape) - len(index))
        return CheckpointTensor(f"{self.name}.{name}", shape, (*index, *whole), target, dtypes=dtypes, store=store)


def _converted_rows(convert: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    return in_turns(convert(values))


def _converted_columns(convert: Callable[[Tensor], Tensor], columns: slice, values: Tensor) -> Tensor:
    return convert(values)[:, columns]


def in_turns(values: Tensor) -> Tensor:
    """Rows [2I, ...] of gate and up in turns: those of the gate, then those of up."""
    return values.unflatten(0, (-1, 2)).transpose(0, 1).flatten(0, 1)
