"""The models and systems of silicon_sample.csv that are simulated, and the settings of each server.

The server's settings are those of InferenceX's scripts (https://github.com/SemiAnalysisAI/InferenceX, benchmarks/):
70b_fp8_h100_slurm.sh, 70b_fp8_h200_slurm.sh, 70b_fp8_b200_docker.sh, 70b_fp4_b200_docker.sh and gptoss_fp4_*.sh: prefix
cache off, at most 8,192 tokens a step, 0.9 of the memory, asynchronous scheduling, as many seats as clients (512 on
B200). Where a script and the measured TTFT disagree, `why` says so. The rows of vLLM 0.12 are NVIDIA's own.
"""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """One model on one system.

    Attributes:
        name: of the model and its weights, for tables.
        model_path, precision: of the rows; precision "nan" where the file leaves it empty.
        device, model: of conf/.
        quantization: format of the weights.
        why: what the settings rest on.
        kv_cache_dtype: auto is 16 bits.
        is_async: whether the server schedules asynchronously, the default since vLLM 0.14.
        max_num_seqs: None takes the number of clients.
        max_graph_tokens: largest CUDA graph; None takes the one that vLLM chooses by max_num_seqs.
        excluded: why no row of this case can be right; such rows are shown and left out of the totals.
    """

    name: str
    model_path: str
    precision: str
    device: str
    model: str
    quantization: str
    why: str
    kv_cache_dtype: str = "auto"
    is_async: bool = True
    max_num_seqs: int | None = None
    max_graph_tokens: int | None = None
    excluded: str = ""

    @property
    def key(self) -> str:
        return f"{self.name}, {self.device}"

    def overrides(self) -> tuple[str, ...]:
        """The command line of run.py that this case stands for, without its rows."""
        return (
            f"model={self.model}",
            f"device={self.device}",
            f"model.quantization={self.quantization}",
            f"engine.kv_cache_dtype={self.kv_cache_dtype}",
            "scheduler=vllm",
            f"scheduler.async_scheduling={str(self.is_async).lower()}",
            "cost=profiled",
            "plots=false",
        )


_L70, _QWEN, _OSS = "meta-llama/Llama-3.1-70B", "Qwen/Qwen3-32B", "openai/gpt-oss-120b"
_SCRIPT = "script: fp8 KV cache, which the pool at TP 1 shows too"
_HOPPER = "script: KV cache in 16 bits"
_NVIDIA = "vLLM 0.12: no asynchronous scheduling by default"

CASES = (
    Case(
        "Llama-3.1-70B FP8", _L70, "fp8", "h100-80gb", "llama-3.1-70b", "fp8",
        "script: fp8 KV cache, but at TP 2 and 64 clients TTFT shows a pool in 16 bits",
    ),
    Case("Llama-3.1-70B FP8", _L70, "fp8", "h200", "llama-3.1-70b", "fp8", _SCRIPT, "fp8"),
    Case("Llama-3.1-70B FP8", _L70, "fp8", "b200", "llama-3.1-70b", "fp8", _SCRIPT, "fp8", max_num_seqs=512),
    Case("Llama-3.1-70B FP4", _L70, "fp4", "b200", "llama-3.1-70b", "nvfp4", _SCRIPT, "fp8", max_num_seqs=512),
    Case("Qwen3-32B", _QWEN, "nan", "h100-80gb", "qwen3-32b", "none", _NVIDIA, is_async=False),
    Case("Qwen3-32B FP8", _QWEN, "fp8", "h100-80gb", "qwen3-32b", "fp8", _NVIDIA, is_async=False),
    Case(
        "Llama-3.1-8B FP8", "nvidia/Llama-3.1-8B-Instruct-FP8", "fp8", "h200", "llama-3.1-8b", "fp8", _NVIDIA,
        is_async=False,
        excluded="up to 98 % of the FP8 peak would be needed: its prompts were most likely cached",
    ),
    Case(
        "Qwen3-235B-A22B FP8", "Qwen/Qwen3-235B-A22B-FP8", "fp8", "h200", "qwen3-235b-a22b", "fp8_block", _NVIDIA,
        is_async=False,
    ),
    Case("gpt-oss-120b", _OSS, "fp4", "h100-80gb", "gpt-oss-120b", "mxfp4", _HOPPER, max_graph_tokens=2048),
    Case("gpt-oss-120b", _OSS, "fp4", "h200", "gpt-oss-120b", "mxfp4", _HOPPER, max_graph_tokens=2048),
    Case(
        "gpt-oss-120b", _OSS, "fp4", "b200", "gpt-oss-120b", "mxfp4", _SCRIPT, "fp8", max_num_seqs=512,
        max_graph_tokens=2048,
    ),
)  # fmt: skip
