"""Which kernels that a server may run instead of vLLM's newest choice change the times of a model's operators."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.importers.aiconfigurator.experts.kernels import timed_kernels
from simulator.models.experts import Experts
from simulator.models.latent import Latent
from simulator.models.model import Model

_HOPPER = ("h100_sxm", "h200_sxm")


def kernels_of(system: str, model: Model, ranks: int) -> Iterator[tuple[str, str]]:
    """The kernels of `vllm_versions` that change the times of operators of a model, each with its table.
    `cutlass_fp4` needs the tables of an old version."""
    if ranks > 1:
        yield "separate_norms", "all_reduce"
    if system in _HOPPER and model.kv_dtype == "auto" and any(block.index_topk for _, block in model.of_kind(Latent)):
        yield "whole_topk", "attention"
    blocks = [block for _, block in model.of_kind(Experts)]
    if any(block.routes_ungrouped for block in blocks):
        yield from _of_experts("routing_kernels")
    if any(block.float32_router for block in blocks):
        yield "tf32_router", "tokens"
    match model.quantization.name:
        case "fp8":
            yield "static_scales", "tokens"
        case "fp8_block" if blocks:
            for kernel in (*(("deepgemm",) if system in _HOPPER and ranks < 8 else ()), *timed_kernels(system)):
                yield from _of_experts(kernel)
        case "nvfp4":
            yield "cutlass_fp4", "tokens"
        case "mxfp4":
            yield from (("marlin", "tokens"), ("mxfp4_mxfp8", "tokens"))


def _of_experts(kernel: str) -> Iterator[tuple[str, str]]:
    """`kernel` in two tables: of experts that are split over ranks, and of experts that lie whole on one rank."""
    yield from ((kernel, "tokens"), (kernel, "experts"))
