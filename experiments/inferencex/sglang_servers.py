"""InferenceX's servers of SGLang, row by row: what the scripts of Qwen3.5 asked for.

The scripts are benchmarks/single_node/qwen3.5_*.sh of SemiAnalysisAI/InferenceX: bf16_b200 (commit 9dc87a68c), fp8_b200
(efd49e50b, 6a5dad463), fp4_b200 (48d35c480), bf16_b300 (32274d6c1), fp4_b300 (8acbd08b7) and fp8_b300 (c0f62a2ef of 17
April 2026; before that B300 is taken to have run the script of B200). All switch the radix cache off, have six
processes that tokenise, and receive requests in one of 10 or 30 steps only.

Rows of 0.5.9 in FP8 on four GPUs with a part of every expert on each were measured with drafts: nvidia-master.yaml of
March and April 2026 has `tp: 4, ep: 1` for qwen3.5-fp8-b200-sglang-mtp only (commits 35d4bb367 and 6a5dad463).
"""

from __future__ import annotations

from typing import Any

from experiments.inferencex.load import DRAFTS, Load
from harness.errors import TwinServeError
from harness.measured.public_servers import PublicServer

_FP8_B300 = "2026-04-17"
_MANY_CLIENTS, _SEATS = 16, 128


def of_load(server: PublicServer, load: Load) -> PublicServer:
    """`server`, an InferenceX's of SGLang, with what the script of the row asked for.

    Raises:
        TwinServeError: it asked for what is not simulated.
    """
    is_fp8 = server.quantization == "fp8_block"
    if is_fp8 and load.num_gpus == 4 and load.day < _FP8_B300:
        raise TwinServeError(DRAFTS)
    is_fp8_b300 = server.device == "b300" and is_fp8 and load.day >= _FP8_B300
    rarely = load.clients >= _MANY_CLIENTS and not is_fp8_b300
    given: dict[str, Any] = {
        "scheduler.enable_prefix_caching": "false",
        "+scheduler.options.scheduler_recv_interval": 30 if rarely else 10,
        "max_num_batched_tokens": 16384 if is_fp8_b300 else 32768,
        "gpu_memory_utilization": 0.8 if is_fp8_b300 else 0.82,
        "frontend": "vllm", "frontend.endpoint": "completions", "frontend.processes": 6,
    }  # fmt: skip
    seats = load.clients if is_fp8_b300 else min(_SEATS, load.clients)
    cache = "auto" if server.quantization == "none" else "fp8"
    why = "InferenceX's scripts of the day"
    return server._replace(more={**server.more, **given}, max_num_seqs=seats, kv_cache_dtype=cache, why=why)
