"""Servers of other engines than vLLM in silicon_sample.csv.

Servers of SGLang are simulated as SGLang 0.5.23, InferenceX's as their scripts say (`sglang_servers`), others with its
own defaults, and the times of the kernels of their version: the newest tables up to it that have the model, or else
the next newer ones. The package has few versions; those of aic-core/src/aiconfigurator_core of ai-
dynamo/aiconfigurator at commit 095f58a51c4c are read beside it. Of nightly builds they are the newest. NVIDIA's of
0.5.6 mix prompts with decodes, as aiconfigurator's generator sets them (rule_plugin/sglang.rule, commit 1089dfa8e;
that it made these servers is likely, not stated); those of Qwen3-32B, 0.5.1 and 0.5.8, do not, as their long TTFT
shows.

Those of TensorRT-LLM are simulated by its scheduler, InferenceX's as their scripts say (`trtllm_servers`), with the
newest times of its kernels. The experts of gpt-oss are Triton's on Hopper, a package of its own that each version
takes as it was: for gpt-oss there tables are chosen as for SGLang, and rows of `gpt-oss-dev` or without a version, all
of 2025, get the oldest (1.2.0rc5). On Blackwell its experts are those that SGLang calls through FlashInfer
(`experts.KERNELS`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from harness.config.command_lines.sglang.import_line import translate
from harness.errors import TwinServeError
from harness.measured.public_servers import PublicServer
from simulator.importers.aiconfigurator.database import find_root

ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
# model_path of the rows: name in conf/model, format of the weights by the precision that rows state.
# Qwen3-32B in FP8 is Qwen/Qwen3-32B-FP8, whose blocks are scaled: the checkpoint of aiconfigurator's own guide for
# servers of TensorRT-LLM, and its default format (docs/dynamo_deployment_guide.md, dense_default.yaml, 961028348).
_MODELS: dict[str, tuple[str, dict[str, str]]] = {
    "Qwen/Qwen3-235B-A22B-FP8": ("qwen3-235b-a22b", {"fp8": "fp8_block"}),
    "Qwen/Qwen3-32B": ("qwen3-32b", {"nan": "none", "fp8": "fp8_block", "fp4": "nvfp4"}),
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
_UNMIXED = ("Qwen/Qwen3-32B",)
_HOPPER = ("h100_sxm", "h200_sxm")
_NEWEST = {"sglang": "0.5.14", "trtllm": "1.3.0rc20"}  # tables, where the package has none
_VERSION = re.compile(r"\d+\.\d+\.\d+(rc\d+)?(\.post\d+)?")
_OLDEST = "0.0.0"
_KERNEL = {"fp8": "+static_scales", "mxfp4": "+mxfp4_mxfp8"}  # of TensorRT-LLM, by the format of the weights
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


def of_sglang(server: PublicServer, kernels: str) -> PublicServer:
    """`server` as SGLang's; `kernels` as in `cost.profile`, "" where they do not matter."""
    is_own = server.length_ratio == 1
    mixed = "--enable-mixed-chunk" if is_own and server.model_path not in _UNMIXED else ""
    command = f"python -m sglang.launch_server --model-path {server.model_path} {mixed}"
    given = ("model", "tensor_parallel_size", "max_num_seqs")
    more = dict(each.split("=", 1) for each in translate(command, given).overrides)
    more |= {"scheduler.options.ignore_eos": "true"}
    why = "SGLang's defaults" + (
        ", likely aiconfigurator's client" + (" and generator" if mixed else "") if is_own else ""
    )
    more |= {"cost.profile": kernels} if kernels else {}
    return server._replace(more=more, has_front_end=False, why=why)


def of_trtllm(server: PublicServer, kernels: str) -> PublicServer:
    """`server` as TensorRT-LLM's; `kernels` as in `cost.profile`, "" where they do not matter.

    NVIDIA's are taken to be of aiconfigurator's generator of August 2025 (cli/backends/trtllm.py and its template
    extra_engine_args.1.0.0rc3.yaml.j2, commit 961028348): no chunks, 0.8 of the memory, and a KV cache in 8 bits with
    weights in 8 bits. That it made these servers is likely, not stated. The rest of it, and what the scripts of
    InferenceX say, is added row by row (`row_servers`, `trtllm_servers`).
    """
    more: dict[str, Any] = {"scheduler": "trtllm", "block_size": 32, "engine.memory_account": "trtllm"}
    more |= {"cost.profile": kernels} if kernels else {}
    if server.length_ratio != 1:
        return server._replace(more=more, has_front_end=True)
    return server._replace(
        more=more,
        kv_cache_dtype="auto" if server.quantization == "none" else "fp8",
        gpu_memory_utilization=0.8,
        why="likely aiconfigurator's generator and client",
    )


def trtllm_kernels(
    silicon: Path, system: str, server: PublicServer, version: str = "", history: Path | None = None
) -> list[str]:
    """Profiles of TensorRT-LLM's kernels, as in `cost.profile`: those of Triton's experts in its version first."""
    if server.quantization == "mxfp4" and system in _HOPPER:
        asked = version if not version or _VERSION.fullmatch(version) else _OLDEST
        return [f"{each}+triton" for each in _profiles("trtllm", silicon, system, asked, history)]
    return [each + _KERNEL.get(server.quantization, "") for each in _profiles("trtllm", silicon, system, "", None)]


def sglang_kernels(silicon: Path, system: str, version: str = "", history: Path | None = None) -> list[str]:
    """Profiles of SGLang's kernels, as in `cost.profile`: those of its version first. Old tables lack some models.

    Args:
        silicon: lies in the package of the newest tables.
        version: as rows have it; of "" or one that is no release, the newest.
        history: folder of aiconfigurator_core with old tables.
    """
    return _profiles("sglang", silicon, system, version if _VERSION.fullmatch(version) else "", history)


def _profiles(backend: str, silicon: Path, system: str, version: str, history: Path | None) -> list[str]:
    package = silicon.resolve().parent
    newest = max(_versions(package, system, backend), key=_numbers, default=_NEWEST[backend])
    found = {newest: package}  # which has old versions in part only
    if history is not None and version:
        found = _versions(find_root(history.resolve()), system, backend) | found
    asked = _numbers(version) or _numbers(newest)
    known = sorted(found, key=_numbers)
    before = sum(_numbers(each) <= asked for each in known)
    chosen = [*known[max(before - 1, 0) :], *reversed(known[: max(before - 1, 0)])]
    return [f"aiconfigurator:{found[each]}:{system}/{backend}/{each}" for each in chosen]


def is_untimed(error: TwinServeError) -> bool:
    """Whether a run was refused as tables lack its operators."""
    return str(error).startswith("cost.profile=")


def _versions(root: Path, system: str, backend: str) -> dict[str, Path]:
    """The versions of an engine whose products were timed."""
    timed = (root / "data" / system / "gemm" / backend).glob("*/gemm_perf.parquet")
    return {path.parent.name: root for path in timed if _VERSION.fullmatch(path.parent.name)}


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]
