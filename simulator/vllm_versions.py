"""What the version of vLLM decides of a simulation: one row for each version from which on something is different.

    asynchronous scheduling   by default since 0.14 (pull request 23569)
    memory account            the sampler sorts all logits until 0.16 (`simulator.models.memory`)
    kernels                   as `cost.profile=auto+<kernel>` names them, where the version ran others than the newest:

    piecewise_graphs   attention is launched between pieces of CUDA graphs; since 0.11 one is a whole decode step
                       (pull request 25444)
    separate_norms     all-reduces and norms are two kernels; fused by default since 0.16 (issue 34458, of February
                       2026, is the first that meets the default; inferred)
    deepgemm           experts in block-scaled FP8 on Hopper by DeepGEMM's padded product, not on 8 GPUs
                       (`simulator.importers.aiconfigurator.deep_gemm`); that 0.14 ended it is inferred
    cutlass_fp4        NVFP4 products of FlashInfer's CUTLASS (pull request 22346) until CuTe DSL's of 0.22 (42235)

Other kernels are not of a version: a checkpoint with `static_scales`, or a server that was told to run `marlin` or
`mxfp4_mxfp8` for the experts of gpt-oss (`simulator.importers.aiconfigurator.experts`).
"""

from __future__ import annotations

import re
from typing import NamedTuple


class VllmVersion(NamedTuple):
    """The defaults of vLLM from `since` on."""

    since: tuple[int, int]
    async_scheduling: bool
    memory_account: str
    kernels: tuple[str, ...]


_ACCOUNT = "vllm_0.9"
_VERSIONS = (
    VllmVersion((0, 9), False, _ACCOUNT, ("piecewise_graphs", "separate_norms", "cutlass_fp4")),
    VllmVersion((0, 11), False, _ACCOUNT, ("separate_norms", "cutlass_fp4")),
    VllmVersion((0, 12), False, _ACCOUNT, ("separate_norms", "cutlass_fp4", "deepgemm")),
    VllmVersion((0, 14), True, _ACCOUNT, ("separate_norms", "cutlass_fp4")),
    VllmVersion((0, 16), True, _ACCOUNT, ("cutlass_fp4",)),
    VllmVersion((0, 17), True, "vllm", ("cutlass_fp4",)),
    VllmVersion((0, 22), True, "vllm", ()),
)
OWN_CHOICES = ("static_scales", "marlin", "mxfp4_mxfp8")
KERNELS = ("piecewise_graphs", "separate_norms", "deepgemm", "cutlass_fp4", *OWN_CHOICES)


def vllm_version(name: str | None) -> VllmVersion:
    """The defaults of a version such as 0.11.0 or v0.18.1; None is the newest.

    Raises:
        ValueError: it is no version, or one before 0.9.
    """
    if name is None:
        return _VERSIONS[-1]
    match = re.match(r"v?(\d{1,6})\.(\d{1,6})(?![\d])", name)
    if match is None:
        raise ValueError(f"vllm_version={name}: must be a version of vLLM such as 0.19.0")
    asked = int(match[1]), int(match[2])
    known = [each for each in _VERSIONS if each.since <= asked]
    if not known:
        raise ValueError(f"vllm_version={name}: must be 0.9 or newer; see scheduler=vllm_v0 for early versions")
    return known[-1]
