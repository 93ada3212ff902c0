"""Servers of other engines than vLLM in silicon_sample.csv, simulated as the newest vLLM of the same model and GPUs.

The settings of these servers are not looked up: what such a simulation tells is how far SGLang and TensorRT-LLM are
from vLLM.
"""

from __future__ import annotations

from typing import Any

from harness.measured.public_servers import PublicServer

ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
# model_path of the rows: name in conf/model, format of the weights by the precision that rows state
_MODELS: dict[str, tuple[str, dict[str, str]]] = {
    "Qwen/Qwen3-235B-A22B-FP8": ("qwen3-235b-a22b", {"fp8": "fp8_block"}),
    "Qwen/Qwen3-32B": ("qwen3-32b", {"nan": "none", "fp8": "fp8", "fp4": "nvfp4"}),
    "nvidia/Qwen3-32B-NVFP4": ("qwen3-32b", {"fp4": "nvfp4"}),
    "Qwen/Qwen3.5-397B-A17B": ("qwen3.5-397b-a17b", {"bf16": "none", "fp8": "fp8_block", "fp4": "nvfp4"}),
    "deepseek-ai/DeepSeek-R1": ("deepseek-r1", {"fp8": "fp8_block", "fp4": "nvfp4"}),
    "nvidia/DeepSeek-R1-NVFP4": ("deepseek-r1", {"fp4": "nvfp4"}),
    "deepseek-ai/DeepSeek-V3": ("deepseek-v3", {"fp8": "fp8_block", "fp4": "nvfp4"}),
    "nvidia/DeepSeek-V3.1-NVFP4": ("deepseek-v3", {"fp4": "nvfp4"}),
    "meta-llama/Llama-3.1-8B-Instruct": ("llama-3.1-8b", {"nan": "none", "fp8": "fp8"}),
    "meta-llama/Llama-3.1-70B": ("llama-3.1-70b", {"fp8": "fp8", "fp4": "nvfp4"}),
    "zhipuai/GLM-5": ("glm-5", {"fp8": "fp8_block", "fp4": "nvfp4"}),
    "openai/gpt-oss-120b": ("gpt-oss-120b", {"fp4": "mxfp4", "fp8": "mxfp4"}),
}
_NVIDIAS = ("Qwen/Qwen3-235B-A22B-FP8", "Qwen/Qwen3-32B", "meta-llama/Llama-3.1-8B-Instruct")
_WHY = "simulated as the newest vLLM"
DEVICES = {
    "a100_sxm": "a100-80gb", "h100_sxm": "h100-80gb", "h200_sxm": "h200", "b200_sxm": "b200", "b300_sxm": "b300",
    "gb200": "gb200", "gb300": "gb300",
}  # fmt: skip


def other_server(model_path: str, precision: str, system: str) -> PublicServer | None:
    """The newest vLLM of the model and GPU of rows; None of a model that is not known here."""
    model, formats = _MODELS.get(model_path, ("", {}))
    if precision not in formats:
        return None
    is_own = model_path.startswith("nvidia/") or model_path in _NVIDIAS  # of NVIDIA, whose client sends equal lengths
    more: dict[str, Any] = {"length_ratio": 1.0, "has_front_end": False} if is_own else {}
    name = f"{model_path.rpartition('/')[2]} {precision}"
    return PublicServer(
        name, model_path, precision, DEVICES[system], model, formats[precision], "0.24.0", _WHY, **more
    )  # fmt: skip
