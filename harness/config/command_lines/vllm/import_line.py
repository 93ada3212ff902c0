"""Overrides of Hydra for a command line of `vllm serve`; the flags are those of vLLM 0.9 to 0.33. The
version is that of docker's image, if the command runs one; `engine.vllm_version` beside it says another.

    vllm serve Qwen/Qwen3-8B --max-num-seqs 128   ->   model=qwen3-8b scheduler=vllm max_num_seqs=128 ...

`harness.config.command_lines.vllm.serve_line` goes the other way.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from harness.config.command_lines import KEYS
from harness.config.command_lines.known_models import KnownModels
from harness.config.command_lines.model_overrides import changed_model, json_object
from harness.config.command_lines.translation import Translation, refused_as, translation
from harness.config.command_lines.values import chosen, decimal, formats, number
from harness.config.command_lines.vllm.line import VllmLine, read_line
from harness.config.command_lines.vllm.offloading import offloading
from harness.config.command_lines.vllm.servers import servers
from harness.config.composing import CONF
from harness.config.schema.system import All2AllBackend
from harness.errors import ConfigError
from simulator.versions.vllm_versions import vllm_version

# Formats that vLLM quantises weights to while it loads them, or that name a checkpoint's; None: the checkpoint's own.
_QUANTIZATIONS = {
    "fp8": "fp8", "awq": "int4", "awq_marlin": "int4", "gptq": "int4", "gptq_marlin": "int4", "mxfp4": "mxfp4",
    "modelopt": "fp8", "modelopt_fp4": "nvfp4", "compressed-tensors": None,
}  # fmt: skip
_KV_DTYPES = {
    "auto": "auto", "bfloat16": "auto", "float16": "auto", "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"
}  # fmt: skip
_FITTING = ("auto", "-1")  # --max-model-len: what fits into memory
_UNITS = {unit: 1000 ** (power + 1) for power, unit in enumerate("kmgt")}
_UNITS |= {unit.upper(): 1024 ** (power + 1) for power, unit in enumerate("kmgt")}
_GENERATION = "--override-generation-config"
_DRAFT_HEADS = ("eagle", "eagle3", "medusa", "mlp_speculator", "mtp")
_NEVER_AHEAD = ("medusa", "mlp_speculator")  # with which vLLM plans no steps ahead


def overrides(command: str) -> list[str]:
    """Overrides of Hydra that make a run predict `vllm serve` with these flags.

    Raises:
        ConfigError: a flag is not one of vLLM, or the simulation has nothing like it; or the model is unknown.
    """
    return translate(command).overrides


@refused_as(KEYS[0])
def translate(command: str, given: Iterable[str] = (), folders: Sequence[Path] = (CONF,)) -> Translation:
    """Overrides and notes for a command line; keys in `given`, which the user sets, are left out.

    Raises:
        ConfigError: as of `overrides`.
    """
    given = set(given)
    made, notes = keys_of(read_line(command), given, folders)
    return translation(made, given, notes)


def keys_of(line: VllmLine, given: Collection[str], folders: Sequence[Path]) -> tuple[dict[str, Any], list[str]]:
    """Keys of ours for a server, and notes. What is `given` may be among the keys.

    Raises:
        ConfigError: as of `overrides`.
    """
    made: dict[str, Any] = {}
    known = KnownModels(folders)
    notes = list(line.notes)
    if line.values.get("--max-model-len", "").lower() in _FITTING:
        notes.append("--max-model-len auto: the model's own limit, whatever fits into memory")
    if line.values.get("--enforce-eager") == "true":
        notes.append("--enforce-eager: no memory for CUDA graphs; what the host's launches take is not simulated")
    if "model" not in given:
        made |= known.named(line.model)
    made |= {"scheduler": "vllm", "frontend": "vllm"}
    if "--api-server-count" in line.values:
        made["frontend.processes"] = _number("api_server_count", line.values["--api-server-count"])
    made |= _numbers(line.values)
    made |= formats(line.values, made, _KV_DTYPES, _QUANTIZATIONS)
    made |= _scheduler(line.values)
    if line.values.get("--language-model-only") == "true":
        made["model.tower_parameters"] = 0
    made |= servers(line.values, _number, lambda: known.has_experts(str(made.get("model", "hf"))), notes)
    made |= offloading(line.values, made["block_size"])
    made |= {key: value for key, value in _server(line).items() if key.partition(".")[0] not in given}
    made |= changed_model("--hf-overrides", line.values, made, known, notes)
    if generation := line.values.get(_GENERATION):
        notes.append(_generation_note(generation))
    if config := line.values.get("--speculative-config"):
        made = made | _speculation(config, known, notes) | made
    return made, notes


def _generation_note(text: str) -> str:
    """What is said of `--override-generation-config`, which sets how tokens are chosen, and the longest answer."""
    longest = json_object(_GENERATION, text).get("max_new_tokens")
    if longest is None:
        return f"{_GENERATION}: left out"
    return f"{_GENERATION}: max_new_tokens={longest} cuts answers in vLLM; those of the trace keep their lengths here"


def _numbers(values: Mapping[str, str]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "max_num_seqs": "${vllm_version:max_num_seqs}",
        "max_num_batched_tokens": "${vllm_version:max_num_batched_tokens}",
        "block_size": 16,
        "gpu_memory_utilization": "${vllm_version:gpu_memory_utilization}",
        "tensor_parallel_size": 1,
        "max_model_len": None,
    }
    for key in made:
        text = values.get(f"--{key.replace('_', '-')}")
        if text is not None and not (key == "max_model_len" and text.lower() in _FITTING):
            made[key] = _number(key, text)
    if "--num-gpu-blocks-override" not in values and "--kv-cache-memory-bytes" in values:
        made["kv_cache_memory_bytes"] = _number("kv_cache_memory_bytes", values["--kv-cache-memory-bytes"])
    if "--num-gpu-blocks-override" in values:
        made["num_blocks"] = _number("num_gpu_blocks_override", values["--num-gpu-blocks-override"])
    return made


def _number(key: str, text: str) -> float:
    """A number as vLLM reads it: 32k is 32,000, 32K is 32,768."""
    flag = f"--{key.replace('_', '-')}"
    return decimal(flag, text) if key == "gpu_memory_utilization" else number(flag, text, _UNITS)


def _scheduler(values: Mapping[str, str]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if values.get("--enable-chunked-prefill") == "false":
        made["scheduler.enable_chunked_prefill"] = False
    if values.get("--enable-prefix-caching") == "false":
        made["scheduler.enable_prefix_caching"] = False
    if values.get("--scheduler-reserve-full-isl") == "false":
        made["scheduler.admission"] = "first_chunk"
    if "--async-scheduling" in values:
        made["scheduler.async_scheduling"] = values["--async-scheduling"] == "true"
    if threshold := values.get("--long-prefill-token-threshold"):
        made["scheduler.long_prefill_token_threshold"] = _number("long_prefill_token_threshold", threshold)
    policy = values.get("--scheduling-policy", "fcfs")
    if chosen("--scheduling-policy", policy, {"fcfs": False, "priority": True}):
        made |= {"scheduler.queue": "priority", "scheduler.victim": "least_urgent"}
    return made


def _server(line: VllmLine) -> dict[str, Any]:
    """What the version and the kernels decide that a command line tells."""
    made: dict[str, Any] = {}
    if line.version:
        made["engine.vllm_version"] = line.version
    kernels = [*line.kernels, *(["static_scales"] if line.values.get("--quantization") == "modelopt" else [])]
    if kernels:
        try:
            of_version = vllm_version(line.version).kernels
        except ValueError as error:
            raise ConfigError(f"{error}") from None
        made["cost.profile"] = "+".join(("auto", *of_version, *kernels))
    if size := line.values.get("--max-cudagraph-capture-size"):
        made["engine.max_graph_tokens"] = _number("max_cudagraph_capture_size", size)
    if line.values.get("--enforce-eager") == "true":
        made["engine.max_graph_tokens"] = 0
    if backend := line.values.get("--all2all-backend"):
        known = {name: name for name in get_args(All2AllBackend)}
        made["engine.all2all_backend"] = chosen("--all2all-backend", backend, known)
    return made


def _speculation(text: str, known: KnownModels, notes: list[str]) -> dict[str, Any]:
    """The group `speculation` for the JSON of `--speculative-config`; what is assumed goes to `notes`."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--speculative-config: no JSON ({error})") from None
    if not isinstance(config, dict) or not isinstance(config.get("num_speculative_tokens"), int):
        raise ConfigError("--speculative-config: needs num_speculative_tokens, a whole number")
    model = config.get("model")
    method = str(config.get("method") or ("ngram" if model in ("ngram", "[ngram]") else "draft_model")).strip("[]")
    keys = {"method", "model", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max"}
    if more := sorted(set(config) - keys):
        notes.append(f"--speculative-config: {', '.join(more)}: not simulated")
    made: dict[str, Any] = {"speculation": "draft_model"}
    made["speculation.num_speculative_tokens"] = config["num_speculative_tokens"]
    notes.append(f"--speculative-config: drafts are accepted at a rate that only a measurement tells; {_RATES}")
    if method in ("ngram", "ngram_gpu"):
        low, high = config.get("prompt_lookup_min"), config.get("prompt_lookup_max")
        if method == "ngram_gpu":
            made["scheduler.async_scheduling"] = True
        return made | {
            "speculation": "ngram",
            "speculation.prompt_lookup_min": low or high or 5,
            "speculation.prompt_lookup_max": high or low or 5,
        }
    if method == "draft_model" and isinstance(model, str):
        return made | {"model@speculation.drafter": known.named(model)["model"]}
    method = "mtp" if method.endswith("_mtp") else method  # names of 0.9 to 0.11, of each model
    if method not in _DRAFT_HEADS:
        raise ConfigError(f"--speculative-config: method {method!r} is not simulated")
    notes.append(f"--speculative-config: the heads of {method} take no time unless speculation.draft_token_s says so")
    if method in _NEVER_AHEAD:
        made["scheduler.async_scheduling"] = False
    return made | {"speculation.drafter": None}


_RATES = "set speculation.acceptance_rate or speculation.acceptance_rates"
