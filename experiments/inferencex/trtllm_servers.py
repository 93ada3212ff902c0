"""InferenceX's servers of TensorRT-LLM, row by row: what its scripts of the day on which a row was measured asked for.

The scripts are those of SemiAnalysisAI/InferenceX (benchmarks/ and benchmarks/single_node/), the layouts those of its
.github/configs/nvidia-master.yaml:

    Llama            29 October 2025, commit 9596d23d7: 70b_fp8_h200_trt_slurm.sh, 70b_fp8_b200_trt_slurm.sh,
                     70b_fp4_b200_trt_slurm.sh; a step of 16,384 tokens, and prompts held back where both lengths are
                     1,024 on fewer than 8 GPUs
    gpt-oss, H200    2 November 2025, commit e06929c70: gptoss_fp4_h200_trt_slurm.sh (`--ep_size=$TP`), and later ones
    gpt-oss, B200    gptoss_fp4_b200_trt_slurm.sh of 2 November; commit 06667a51e of 2 December; d7dbd045b of 5 February
    DeepSeek-R1      2 November, e06929c70: dsr1_*_trt_slurm.sh, which choose whole experts and ranks of attention by
                     the number of clients; commits ec7bafaae (29 January) and 6eecc0e66 (3 February 2026).
                     14 January (commit bf3456727), 5 and 6 February (5d517074c, 0aae52d4c) were sweeps of drafts by
                     MTP alone, of whose acceptance the file tells nothing

Rows of 2 November are labelled with one rank of experts, whatever their scripts asked for.
"""

from __future__ import annotations

from typing import Any

from experiments.inferencex.load import DRAFTS, Load
from harness.errors import TwinServeError
from harness.measured.public_servers import PublicServer

_BEFORE_LABELS = "2025-11-20"  # until then the scripts chose whole experts and ranks of attention
_MTP = ("2026-01-14", "2026-02-05", "2026-02-06")
_RANKS = "data-parallel ranks of TensorRT-LLM"


def of_load(server: PublicServer, load: Load) -> PublicServer:
    """`server`, an InferenceX's of TensorRT-LLM, with what the script of the row asked for.

    Raises:
        TwinServeError: it asked for what is not simulated.
    """
    if server.model == "gpt-oss-120b":
        given = _gpt_oss(server, load)
    elif server.model.startswith("deepseek"):
        given = _deepseek(server, load)
    else:
        given = _llama(load)
    share = given.pop("gpu_memory_utilization", 0.9)
    kernels = given.pop("kernels", "")
    more = {**server.more, "scheduler.enable_prefix_caching": "false", **given}
    if kernels and "cost.profile" in more:
        more["cost.profile"] += f"+{kernels}"
    cache = "auto" if server.model == "gpt-oss-120b" and server.device == "h200" else "fp8"
    return server._replace(more=more, gpu_memory_utilization=share, kv_cache_dtype=cache)


def _llama(load: Load) -> dict[str, Any]:
    is_held_back = load.prompt == load.output == 1024 and load.num_gpus < 8
    return {"max_num_batched_tokens": 16384} | (_held_back(20, 0.9) if is_held_back else {})


def _gpt_oss(server: PublicServer, load: Load) -> dict[str, Any]:
    is_old = load.day < _BEFORE_LABELS
    if server.device == "b200" and is_old and load.clients >= 256:
        raise TwinServeError(_RANKS)
    has_whole = server.device == "h200" and load.num_gpus > 1
    return {"max_num_batched_tokens": 20000, "gpu_memory_utilization": 0.85} | (
        _whole_experts(load) if has_whole else {}
    )


def _deepseek(server: PublicServer, load: Load) -> dict[str, Any]:
    if load.day in _MTP:
        raise TwinServeError(DRAFTS)
    is_old, is_fp4 = load.day < _BEFORE_LABELS, server.quantization == "nvfp4"
    if is_old and _has_ranks(server, load):
        raise TwinServeError(_RANKS)
    tokens = -(-(load.clients + load.prompt + 64) // 64) * 64
    given: dict[str, Any] = {"gpu_memory_utilization": 0.75 if server.device == "h200" else 0.8}
    if load.day >= "2026-01-29":
        tokens = max(tokens, 8192)
        if not is_fp4:
            given |= _fp8_of_january(load)
    few = {(4, 8192, 1024): 32, (8, 1024, 1024): 8, (8, 1024, 8192): 16}.get(
        (load.num_gpus, load.prompt, load.output), 32
    )
    has_whole = is_old and (not is_fp4 or load.clients > few)
    return given | {"max_num_batched_tokens": tokens} | (_whole_experts(load) if has_whole else {})


def _has_ranks(server: PublicServer, load: Load) -> bool:
    """Whether attention of each request was on one GPU."""
    is_long = load.prompt == 8192
    if server.quantization == "nvfp4":
        most = 32 if is_long else 255
    elif server.device == "h200":
        most = 32 if is_long else 64
    else:
        most = 32 if load.prompt == load.output else 64
    return load.clients > most


def _fp8_of_january(load: Load) -> dict[str, Any]:
    """Experts by TensorRT-LLM's own kernel, and prompts held back."""
    is_short = load.prompt == load.output == 1024
    held_back = _held_back(40, 0.8) if is_short and load.clients >= 64 else {}
    share = {"gpu_memory_utilization": 0.75} if load.prompt == 8192 and load.num_gpus == 4 else {}
    return {"kernels": "trtllm_gen"} | held_back | share


def _held_back(steps: int, share: float) -> dict[str, Any]:
    options = "scheduler.options.batch_wait"
    return {f"+{options}_timeout_iters": steps, f"+{options}_max_tokens_ratio": share}


def _whole_experts(load: Load) -> dict[str, Any]:
    return {"expert_parallel": "true", "tensor_parallel_size": load.num_gpus}
