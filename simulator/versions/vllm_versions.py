"""What the version of vLLM decides of a simulation: one row for each version from which on something is different.

    asynchronous scheduling   by default since 0.14 (pull request 23569); with drafts of heads, of a draft model since
                              0.27 (inferred: 0.26 has it when asked), never of prompt lookup on the CPU
    memory account            the sampler sorts all logits until 0.16 (`simulator.models.memory`); an estimate of the
                              CUDA graphs is set apart since 0.20 (pull request 30515; logs of 0.20.0 say so)
    share of the memory       --gpu-memory-utilization is 0.92 by default since 0.20, to make up for it
    tokens of a step          16,384 by default on devices of 160 GiB and more since 0.28 (8,192 on those of 70 GiB)
    free blocks               those without a hash are taken first since 0.23
    priorities                who gives way itself no longer ends the step for those after it since 0.33
    thresholds                --long-prefill-token-threshold leaves alone who is alone since 0.31
    admissions with drafts    one that has one token to compute is padded to a decode with drafts since 0.25, beside
                              decodes only; near the longest sequence it waits until 0.28; beside no decodes, too, since
                              0.31, if a part of its prompt is cached
    tokens of drafts          can be found when their step has run since 0.33, not only when the next one is planned
    KV offloading             of OffloadingConnector (`engine.core.offloading.connector.OffloadingRules`): what is
                              stored can be found when its job is done since 0.27, before that when all of its request
                              is; a request has one place in the order of eviction since 0.33; who waits with blocks
                              comes first since 0.33; latents, which all ranks have, are on the host once since 0.27,
                              those with an indexer since 0.33 (0.20 to 0.26 and 0.28 to 0.32 were not looked at)
    balancing of ranks        counts what is in flight, weighs a queue by the use of the KV cache and takes turns since
                              0.27 (pull requests 47420 and 49204; not in 0.19; 0.20 to 0.26 were not looked at)
    kernels                   as `cost.profile=auto+<kernel>` names them, where the version ran others than the newest:

    piecewise_graphs   attention is launched between pieces of CUDA graphs; since 0.11 one is a whole decode step
                       (pull request 25444)
    separate_norms     all-reduces and norms are two kernels; fused by default since 0.17 (`enable_allreduce_rms_fusion`
                       of its config/vllm.py, which 0.16 lacks)
    routing_kernels    experts of MiniMax-M2 on data-centre Blackwell are chosen by kernels beside theirs; not since
                       0.22, which knows this kind of routing (RoutingMethodType.MiniMax2)
    deepgemm           experts in block-scaled FP8 on Hopper by DeepGEMM's padded product, not on 8 GPUs
                       (`simulator.importers.aiconfigurator.experts.deep_gemm`); 0.13 skips the rows of padding
                       (fill_value=-1 of its fused_moe/deep_gemm_utils.py), and is priced, as 0.14, by Triton's times
    flashinfer_cutlass experts in block-scaled FP8 on Hopper of which each GPU has a part, in 0.15 and 0.16 (the order
                       in their fused_moe/oracle/fp8.py); Triton's since 0.17. Whole experts stay FlashInfer's
    marlin             experts of gpt-oss, until the kernels of Triton came with vLLM (0.12, inferred: a step of 8,192
                       tokens of gpt-oss-20b takes 228 ms on an H100 with 0.11, 205 by Marlin's times, 103 by Triton's)
    whole_topk         sparse latent attention over a 16-bit cache on Hopper computes as many tokens for each query as
                       the indexer may pick, there or not; not since 0.24, which tells the kernel how many there are
                       (`topk_length` in its flashmla_sparse.py, which 0.23 lacks)
    cutlass_fp4        NVFP4 products of FlashInfer's CUTLASS (pull request 22346) until CuTe DSL's of 0.22 (42235)

Other kernels are not of a version: a checkpoint with `static_scales`, or a server that was told to run `marlin` or
`mxfp4_mxfp8` for the experts of gpt-oss or `triton_experts` in block-scaled FP8 on B200
(`simulator.importers.aiconfigurator.experts.kernels`), or routers with inputs in TF32 (`tf32_router`).

The front end takes 1.5 ms of work for a request (gpt-oss-20b on H100, 1,000 at once), 4.5 us for each token of its
prompt, and 10 ms from client to engine (InferenceX, gpt-oss with few clients; ±50 %, assumed). In 0.11 a chat request
of a model with a template takes 10.5 ms of work more (Qwen3-14B on an A100, 1,000 at once), as if the template was
parsed anew for each, which pull request 20065 had found and mended in another place; and 26 ms more pass for each
(Qwen3-8B on an H100, one client). That later versions have neither is assumed.
"""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

from simulator.versions.front_end_times import FrontEndTimes


class VllmVersion(NamedTuple):
    """The defaults of vLLM from `since` on."""

    since: tuple[int, int]
    async_scheduling: bool
    memory_account: str
    kernels: tuple[str, ...]
    gpu_memory_utilization: float = 0.9
    eviction: Literal["lru", "unhashed_first"] = "lru"
    tokens_of_160_gib: int = 8192
    cuts_alone: bool = True
    ends_with_giving_way: bool = True
    pads_admissions: str = "never"
    finds_verified: bool = False
    draft_models_ahead: bool = False

    @property
    def counts_in_flight(self) -> bool:
        """Of the rule vllm_balancer."""
        return self.since >= (0, 27)

    @property
    def offloading(self) -> dict[str, Any]:
        """Of the rules of the connector, all but the size of a chunk."""
        if self.since >= (0, 33):
            return {}
        if self.since >= (0, 27):
            return {
                "recency": "idle",
                "at_end": "all",
                "stores_again": False,
                "reserves": "prompts",
                "busy_blocks": "held",
                "holders_first": False,
            }
        return {
            "by_request": True, "recency": "stored", "at_end": "nothing", "stores_again": False, "reserves": "nothing",
            "busy_blocks": "free", "holders_first": False,
        }  # fmt: skip

    @property
    def options(self) -> dict[str, bool | str]:
        """Of the policy admission_order."""
        return {
            "cuts_alone": self.cuts_alone,
            "ends_with_giving_way": self.ends_with_giving_way,
            "pads_admissions": self.pads_admissions,
            "finds_verified": self.finds_verified,
        }

    def batch_defaults(self, memory_bytes: int, device: str) -> tuple[int, int]:
        """`--max-num-seqs` and `--max-num-batched-tokens` of a server that is given neither, by the device's memory and
        name (`EngineArgs.get_batch_defaults`)."""
        if memory_bytes < 70 * 2**30 or "a100" in device.lower():
            return 256, 2048
        return 1024, self.tokens_of_160_gib if memory_bytes >= 160 * 2**30 else 8192


_ACCOUNT = "vllm_0.9"
_WHOLE_TOPK = "whole_topk"  # until 0.24
_UNTIL_0_22 = ("cutlass_fp4", "routing_kernels", _WHOLE_TOPK)
_VERSIONS = (
    VllmVersion((0, 9), False, _ACCOUNT, ("piecewise_graphs", "separate_norms", *_UNTIL_0_22, "marlin")),
    VllmVersion((0, 11), False, _ACCOUNT, ("separate_norms", *_UNTIL_0_22, "marlin")),
    VllmVersion((0, 12), False, _ACCOUNT, ("separate_norms", *_UNTIL_0_22, "deepgemm")),
    VllmVersion((0, 13), False, _ACCOUNT, ("separate_norms", *_UNTIL_0_22)),
    VllmVersion((0, 14), True, _ACCOUNT, ("separate_norms", *_UNTIL_0_22)),
    VllmVersion((0, 15), True, _ACCOUNT, ("separate_norms", *_UNTIL_0_22, "flashinfer_cutlass")),
    VllmVersion((0, 17), True, "vllm_0.17", _UNTIL_0_22),
    VllmVersion((0, 20), True, "vllm", _UNTIL_0_22, 0.92),
    VllmVersion((0, 22), True, "vllm", (_WHOLE_TOPK,), 0.92),
    VllmVersion((0, 23), True, "vllm", (_WHOLE_TOPK,), 0.92, "unhashed_first"),
    VllmVersion((0, 24), True, "vllm", (), 0.92, "unhashed_first"),
    VllmVersion((0, 25), True, "vllm", (), 0.92, "unhashed_first", pads_admissions="or_waits"),
    VllmVersion((0, 27), True, "vllm", (), 0.92, "unhashed_first", 8192, True, True, "or_waits", False, True),
    VllmVersion((0, 28), True, "vllm", (), 0.92, "unhashed_first", 16384, True, True, "or_waits", False, True),
    VllmVersion((0, 29), True, "vllm", (), 0.92, "unhashed_first", 16384, True, True, "with_decodes", False, True),
    VllmVersion((0, 31), True, "vllm", (), 0.92, "unhashed_first", 16384, False, True, "always", False, True),
    VllmVersion((0, 33), True, "vllm", (), 0.92, "unhashed_first", 16384, False, False, "always", True, True),
)
OWN_CHOICES = ("static_scales", "marlin", "mxfp4_mxfp8", "triton_experts", "tf32_router")
KERNELS = ("piecewise_graphs", "separate_norms", "deepgemm", "flashinfer_cutlass", *_UNTIL_0_22, *OWN_CHOICES)


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
        meant = f" (a number loses its last 0: write {name}0 as {name}0.0)" if name == f"0.{asked[1]}" else ""
        raise ValueError(f"vllm_version={name}: must be 0.9 or newer{meant}; see scheduler=vllm_v0 for early versions")
    return known[-1]


_FRONT_END = FrontEndTimes(request_ns=1_500_000, prompt_token_ns=4500.0, latency_ns=10_000_000, spread=0.5)
_PARSED_ANEW = FrontEndTimes(request_ns=12_000_000, prompt_token_ns=4500.0, latency_ns=36_000_000, spread=0.5)


def vllm_front_end(name: str | None, *, renders_template: bool) -> FrontEndTimes:
    """What a request costs before the engine of this version; `renders_template`: of the model, as chat requests do.

    Raises:
        ValueError: as of `vllm_version`.
    """
    return _PARSED_ANEW if renders_template and vllm_version(name).since == (0, 11) else _FRONT_END
