"""The experts of a layer: the weights that a rank holds of them, and what they compute."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.models.family_fields import SigmoidRouting
from engine.models.layers.checkpoint import CheckpointTensor
from engine.models.layers.fp8 import Fp8Experts
from engine.models.layers.linear import Layer, parameter
from engine.models.layers.parallel import TensorParallel
from engine.models.quantization import Fp8Weights
from kernels.experts.moe import fused_moe


class SigmoidChoice(Layer):
    """Turns a router's logits into those whose softmax chooses and weighs experts as DeepSeek-V3 does.

    A token's weights are the sigmoids of its choices' logits, divided by their sum: the softmax of the logarithms of
    these sigmoids, where all other logits are -inf.
    """

    def __init__(self, name: str, num_experts: int, routing: SigmoidRouting) -> None:
        super().__init__()
        self.name = name
        self.routing = routing
        self.bias = nn.Parameter(torch.zeros(num_experts, dtype=torch.float32), requires_grad=False)

    def forward(self, logits: Tensor, top_k: int) -> Tensor:
        """`[T, E] -> float32[T, E]`"""
        logits = logits.float()
        scores = (logits.sigmoid() + self.bias).unflatten(1, (self.routing.num_groups, -1))
        groups = scores.topk(2, -1).values.sum(-1).topk(self.routing.num_used_groups, -1).indices
        used = torch.zeros_like(scores[..., 0]).scatter_(1, groups, 1.0).bool()
        chosen = scores.masked_fill(~used.unsqueeze(-1), -torch.inf).flatten(1).topk(top_k, -1).indices
        return torch.full_like(logits, -torch.inf).scatter_(1, chosen, functional.logsigmoid(logits).gather(1, chosen))

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        shape = (self.bias.shape[0],)
        yield CheckpointTensor(f"{self.name}.e_score_correction_bias", shape, (slice(None),), self.bias)


class Experts(Layer):
    """A mixture of gated MLPs with weights `w13 [E, 2I, H]` (gate rows, then up rows) and `w2 [E, H, I]`.

    The ranks split I, the width of an expert. `parts` are the names of gate, up and down in checkpoints.
    """

    def __init__(
        self,
        name: str,
        num_experts: int,
        hidden_size: int,
        size: int,
        tp: TensorParallel,
        fp8: Fp8Weights | None = None,
        parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    ) -> None:
        super().__init__()
        self.parts = parts
        self.name = name
        self.tp = tp
        self.num_experts = num_experts
        self.hidden_size = hidden_size
        self.size = size // tp.size
        self.w13 = _matrices(num_experts, 2 * self.size, hidden_size, fp8)
        self.w2 = _matrices(num_experts, hidden_size, self.size, fp8)

    def forward(self, x: Tensor, router_logits: Tensor, top_k: int, renormalize: bool) -> Tensor:
        """This rank's part of `fused_moe`, `[T, H] -> [T, H]`, to be summed over the ranks."""
        w13, w2 = self.w13, self.w2
        return fused_moe(
            x,
            router_logits,
            w13.stack() if isinstance(w13, Fp8Experts) else w13,
            w2.stack() if isinstance(w2, Fp8Experts) else w2,
            top_k,
            renormalize,
        )

    def checkpoint_tensors(self) -> Iterator[CheckpointTensor]:
        hidden, total, start = self.hidden_size, self.size * self.tp.size, self.tp.rank * self.size
        share, whole = slice(start, start + self.size), slice(0, hidden)
        for expert in range(self.num_experts):
            name = f"{self.name}.{expert}"
            for part, first_row in zip(self.parts, (0, self.size), strict=False):
                yield from _tensors(self.w13, expert, f"{name}.{part}", (total, hidden), (share, whole), first_row)
            yield from _tensors(self.w2, expert, f"{name}.{self.parts[2]}", (hidden, total), (whole, share))


def _matrices(num_experts: int, rows: int, columns: int, fp8: Fp8Weights | None) -> nn.Parameter | Fp8Experts:
    """Uninitialised weights `[num_experts, rows, columns]`."""
    return parameter(num_experts, rows, columns) if fp8 is None else Fp8Experts(num_experts, rows, columns, fp8)


def _tensors(
    weights: Tensor | Fp8Experts,
    expert: int,
    name: str,
    shape: tuple[int, int],
    index: tuple[slice, slice],
    first_row: int = 0,
) -> Iterator[CheckpointTensor]:
    """The slice `index` of the checkpoint matrix `name` of `shape`, to be the expert's rows from `first_row` on."""
    if isinstance(weights, Fp8Experts):
        yield from weights.part(expert).checkpoint_tensors(name, shape, index, first_row)
        return
    rows = index[0].stop - index[0].start
    yield CheckpointTensor(f"{name}.weight", shape, index, weights[expert, first_row : first_row + rows])
