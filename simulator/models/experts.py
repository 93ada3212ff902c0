"""A mixture of experts: gated MLPs of which each token uses some, chosen by a router."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.models.block import Block, Sizes, SmallKernels, Weights


@dataclass(frozen=True)
class Experts(Block):
    """Attributes:
    num_experts: MLPs of `intermediate_size`, of which a token uses `num_used`.
    shared_size: width of the MLP that all tokens use beside them; 0 for none.
    latent_size: to which the hidden state is projected for the experts; 0 where it is not.
    is_gated: whether a gate multiplies what an MLP projects up.
    has_shared_gate: whether a product with the hidden state scales the output of the shared MLP.
    float32_router: whether vLLM keeps the router in float32: `params_dtype` of the gate in its glm4_moe.py,
        minimax_m2.py, mimo_v2.py and step3p5.py.
    routes_ungrouped: whether a bias corrects the scores of experts that are in no groups, as of MiniMax-M2.
    num_extras: parameters beside matrices and the norm of the hidden state.
    num_ranks: ranks that share out whole experts; with 1, each rank has a part of every expert.
    """

    num_experts: int
    num_used: int
    intermediate_size: int
    shared_size: int = 0
    latent_size: int = 0
    is_gated: bool = True
    has_shared_gate: bool = False
    float32_router: bool = False
    routes_ungrouped: bool = False
    num_extras: int = 0
    num_ranks: int = 1

    is_attention = False

    def __post_init__(self) -> None:
        if self.num_used > self.num_experts:
            raise ValueError(f"num_used={self.num_used}: must be <= num_experts={self.num_experts}")
        if self.num_experts % self.num_ranks:
            raise ValueError(f"num_ranks={self.num_ranks}: must divide num_experts={self.num_experts}")

    def matrices(self, model: Sizes, ranks: int) -> tuple[Weights, ...]:
        """Router and latent projections are on every rank."""
        hidden, counts = model.hidden_size, (self.num_experts // self.num_ranks, self.num_used / self.num_ranks)
        inner, up = self.latent_size or hidden, 2 if self.is_gated else 1
        width, shared = self.expert_width(ranks), self.shared_size // ranks
        return (
            Weights("router", "float32_router" if self.float32_router else "router", self.num_experts, hidden),
            Weights("experts", "experts", up * width, inner, *counts),
            Weights("experts", "experts", inner, width, *counts),
            *([Weights("latent_down_proj", "latent_experts", inner, hidden)] if self.latent_size else ()),
            *([Weights("latent_up_proj", "latent_experts", hidden, inner)] if self.latent_size else ()),
            *([Weights("shared_gate_up_proj", "shared_experts", up * shared, hidden)] if shared else ()),
            *([Weights("shared_down_proj", "shared_experts", hidden, shared)] if shared else ()),
            *([Weights("shared_gate", "router", 1, hidden)] if self.has_shared_gate else ()),
        )

    def num_vectors(self, model: Sizes) -> int:
        return model.hidden_size + self.num_extras

    def num_elements(self, model: Sizes, ranks: int) -> float:
        return (3 if self.is_gated else 2) * (self.intermediate_size * self.num_used + self.shared_size) / ranks

    def small_kernels(self, model: Sizes, ranks: int) -> SmallKernels:
        """The norm, and the activation of the shared MLP: the experts' kernel contains their own."""
        shared = (3 if self.is_gated else 2) * self.shared_size // ranks
        return SmallKernels(2 if shared else 1, (4 * model.hidden_size + shared) * model.dtype_bytes)

    def buffer_bytes(self, model: Sizes, num_tokens: int, ranks: int) -> int:
        """Bytes of the buffers of Triton's experts: routed rows, as wide as the wider of input and output.

        Experts in a format of their own (MXFP4) run in other kernels, which keep no such buffers.
        """
        if model.quantization.experts_only:
            return 0
        width, hidden = self.expert_width(ranks), self.latent_size or model.hidden_size
        rows = num_tokens * self.num_used
        return rows * (max(width, hidden) + max(2 * width, hidden)) * model.dtype_bytes

    def expert_width(self, ranks: int) -> int:
        """What a rank has of the intermediate size of an expert."""
        return self.intermediate_size // (ranks if self.num_ranks == 1 else 1)
