"""The models and systems of silicon_sample.csv that are simulated, and the settings of each server and client.

Llama-3.1-70B and gpt-oss-120b were served by InferenceX (https://github.com/SemiAnalysisAI/InferenceX), with prefix
cache off, at most 8,192 tokens a step, 0.9 of the memory, asynchronous scheduling, and as many seats as clients (512
on B200). The scripts are those of the days on which the rows were measured:

    Llama      29 October 2025, commit 9596d23d7: benchmarks/70b_*.sh, vLLM 0.10.2, nvidia/Llama-3.3-70B-Instruct-FP8
    gpt-oss    27 March 2026, commit cec542a9a: benchmarks/single_node/gptoss_fp4_h100.sh and _h200.sh, vLLM 0.18.0
               25 February 2026, commit d2c2acb19: gptoss_fp4_b200.sh, vLLM 0.15.1

Where a script and the measured times disagree, `why` says so. Since 0.11 (pull request 25444) vLLM puts a whole decode
step into one CUDA graph; Llama ran so on B200 only, where the script asks for it.

Qwen3 was measured by NVIDIA with vLLM 0.12 in Dynamo 0.8. The client is that of aiconfigurator's `eval` of that month
(genai_perf_runner.py, commit 612e5b102): all lengths alike, 10 requests a client. The server is that of its
generator (rule_plugin/vllm.rule, commit 2063ee024, of February 2026): 512 seats, and 512 + 1,500 tokens a step beyond
the length of a prompt. That it made these servers is likely, not stated; the rows of Qwen3-32B have the numbers of
clients of its bench_run.sh (commit f90534bc2), which would send 50 requests a client.
"""

from __future__ import annotations

from typing import Any, NamedTuple


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
        has_full_graphs: whether one CUDA graph is a whole decode step; otherwise attention is launched between graphs.
        max_num_seqs: None takes the number of clients.
        tokens_beyond_prompt: tokens of a step beyond the stated length of a prompt; None: 8,192 tokens a step.
        max_graph_tokens: largest CUDA graph; None takes the one that vLLM chooses by max_num_seqs.
        tables: what follows the system in the name of a profile (`compile_profile`): a version of the database that is
            not the newest, and what the server ran other than vLLM's choice of today.
        length_ratio: shortest length that the client sends, as a share of the longest.
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
    has_full_graphs: bool = True
    max_num_seqs: int | None = None
    tokens_beyond_prompt: int | None = None
    max_graph_tokens: int | None = None
    tables: str = ""
    length_ratio: float = 0.8
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


_OLD = "+separate_norms"  # all-reduces and norms are not fused by default
_STATIC = "+static_scales"  # of ModelOpt's FP8 checkpoints
_L70, _QWEN, _OSS = "meta-llama/Llama-3.1-70B", "Qwen/Qwen3-32B", "openai/gpt-oss-120b"
_SCRIPT = "script: fp8 KV cache, which the pool at TP 1 shows too"
_FP4 = _SCRIPT + (
    "; NVFP4 products of the newest tables are CuTe DSL's (vLLM pull request 42235, of 2026), the server ran "
    "FlashInfer's CUTLASS (22346): tables of vLLM 0.19.0, the oldest"
)
_MARLIN = "script: KV cache in 16 bits, VLLM_MXFP4_USE_MARLIN=1"
_W4A8 = "script: fp8 KV cache, VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8=1"
_NVIDIA = "vLLM 0.12: no asynchronous scheduling by default"
_DEEP_GEMM = _NVIDIA + ", experts by DeepGEMM's contiguous product at every size (pull request 26197)"
_NVIDIA_SETTINGS: dict[str, Any] = {
    "is_async": False, "length_ratio": 1.0, "max_num_seqs": 512, "tokens_beyond_prompt": 2012, "tables": _OLD,
}  # fmt: skip

CASES = (
    Case(
        "Llama-3.1-70B FP8", _L70, "fp8", "h100-80gb", "llama-3.1-70b", "fp8",
        "script: fp8 KV cache, but at TP 2 and 64 clients TTFT shows a pool in 16 bits", has_full_graphs=False,
        tables=_OLD + _STATIC,
    ),
    Case(
        "Llama-3.1-70B FP8", _L70, "fp8", "h200", "llama-3.1-70b", "fp8", _SCRIPT, "fp8", has_full_graphs=False,
        tables=_OLD + _STATIC,
    ),
    Case(
        "Llama-3.1-70B FP8", _L70, "fp8", "b200", "llama-3.1-70b", "fp8", _SCRIPT, "fp8", max_num_seqs=512,
        tables=_STATIC,
    ),
    Case(
        "Llama-3.1-70B FP4", _L70, "fp4", "b200", "llama-3.1-70b", "nvfp4", _FP4, "fp8", max_num_seqs=512,
        tables="/vllm/0.19.0",
    ),
    Case("Qwen3-32B", _QWEN, "nan", "h100-80gb", "qwen3-32b", "none", _NVIDIA, **_NVIDIA_SETTINGS),
    Case("Qwen3-32B FP8", _QWEN, "fp8", "h100-80gb", "qwen3-32b", "fp8", _NVIDIA, **_NVIDIA_SETTINGS),
    Case(
        "Llama-3.1-8B FP8", "nvidia/Llama-3.1-8B-Instruct-FP8", "fp8", "h200", "llama-3.1-8b", "fp8", _NVIDIA,
        excluded="up to 98 % of the FP8 peak would be needed: its prompts were most likely cached",
        **_NVIDIA_SETTINGS,
    ),
    Case(
        "Qwen3-235B-A22B FP8", "Qwen/Qwen3-235B-A22B-FP8", "fp8", "h200", "qwen3-235b-a22b", "fp8_block", _DEEP_GEMM,
        **{**_NVIDIA_SETTINGS, "tables": _OLD + "+deepgemm"},
    ),
    Case(
        "gpt-oss-120b", _OSS, "fp4", "h100-80gb", "gpt-oss-120b", "mxfp4", _MARLIN, max_graph_tokens=2048,
        tables="+marlin",
    ),
    Case(
        "gpt-oss-120b", _OSS, "fp4", "h200", "gpt-oss-120b", "mxfp4", _MARLIN, max_graph_tokens=2048, tables="+marlin",
    ),
    Case(
        "gpt-oss-120b", _OSS, "fp4", "b200", "gpt-oss-120b", "mxfp4", _W4A8, "fp8", max_num_seqs=512,
        max_graph_tokens=2048, tables="+mxfp4_mxfp8",
    ),
)  # fmt: skip
