"""Which kernels that a server may run instead of vLLM's newest choice change the times of a model's operators."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.models.experts import Experts
from simulator.models.model import Model

_HOPPER = ("h100_sxm", "h200_sxm")


def kernels_of(system: str, model: Model, ranks: int) -> Iterator[tuple[str, str]]:
    """The kernels of `simulator.vllm_versions` that change the times of operators of a model, each with its table.
    `cutlass_fp4` needs the tables of an old version."""
    if ranks > 1:
        yield "separate_norms", "all_reduce"
    if any(block.routes_ungrouped for _, block in model.of_kind(Experts)):
        yield "routing_kernels", "tokens"
    match model.quantization.name:
        case "fp8":
            yield "static_scales", "tokens"
        case "fp8_block" if model.first(Experts) and system in _HOPPER and ranks < 8:
            yield "deepgemm", "tokens"
        case "nvfp4":
            yield "cutlass_fp4", "tokens"
        case "mxfp4":
            yield from (("marlin", "tokens"), ("mxfp4_mxfp8", "tokens"))
