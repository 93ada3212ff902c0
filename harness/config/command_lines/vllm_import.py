"""Overrides of Hydra for a command line of `vllm serve`; the flags are those of vLLM 0.9 to 0.33. The
version is that of docker's image, if the command runs one; `engine.vllm_version` beside it says another.

    vllm serve Qwen/Qwen3-8B --max-num-seqs 128   ->   model=qwen3-8b scheduler=vllm max_num_seqs=128 ...

`harness.config.command_lines.vllm_serve` goes the other way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.config.command_lines.vllm_line import KEY as KEY
from harness.config.command_lines.vllm_line import Line, read_line
from harness.config.command_lines.vllm_models import KnownModels
from harness.config.command_lines.vllm_overrides import generation_notes, hf_overrides
from harness.config.command_lines.vllm_servers import servers
from harness.config.composing.conf_tree import CONF
from harness.config.composing.overrides import quoted
from harness.errors import ConfigError
from simulator.vllm_versions import vllm_version

# Formats that vLLM quantises weights to while it loads them, or that name a checkpoint's; None: the checkpoint's own.
_QUANTIZATIONS = {
    "fp8": "fp8", "awq": "int4", "awq_marlin": "int4", "gptq": "int4", "gptq_marlin": "int4", "mxfp4": "mxfp4",
    "modelopt": "fp8", "modelopt_fp4": "nvfp4", "compressed-tensors": None,
}  # fmt: skip
_DTYPES = {"half": "float16", "float": "float32", "float16": "float16", "bfloat16": "bfloat16", "float32": "float32"}
_KV_DTYPES = {
    "auto": "auto", "bfloat16": "auto", "float16": "auto", "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"
}  # fmt: skip
_FITTING = ("auto", "-1")  # --max-model-len: what fits into memory
_MOST_DIGITS = 30
_DRAFT_HEADS = ("eagle", "eagle3", "medusa", "mlp_speculator", "mtp")


class Translation(NamedTuple):
    """Overrides of Hydra for a command line of vLLM, and one line for each thing in it that they leave out."""

    overrides: list[str]
    notes: list[str]


def overrides(command: str) -> list[str]:
    """Overrides of Hydra that make a run predict `vllm serve` with these flags.

    Raises:
        ConfigError: a flag is not one of vLLM, or the simulation has nothing like it; or the model is unknown.
    """
    return translate(command).overrides


def expand(arguments: Sequence[str], folders: Sequence[Path] = (CONF,)) -> Translation:
    """The arguments of run.py with `import_vllm=...` replaced by overrides, which yield to all that is given beside it.

    Args:
        folders: configuration trees, whose models are known by their names on Hugging Face.

    Raises:
        ConfigError: as of `overrides`.
    """
    commands = [text.partition("=")[2] for text in arguments if text.startswith(f"{KEY}=")]
    if not commands:
        return Translation(list(arguments), [])
    if len(commands) > 1:
        raise ConfigError(f"{KEY}: given {len(commands)} times; one run has one command line")
    others = [text for text in arguments if not text.startswith(f"{KEY}=")]
    given = {text.lstrip("+~").partition("=")[0] for text in others if "=" in text and not text.startswith("-")}
    imported, notes = translate(commands[0], given, folders)
    at = next((index for index, text in enumerate(others) if "=" in text and not text.startswith("-")), len(others))
    return Translation([*others[:at], *imported, *others[at:]], notes)


def translate(command: str, given: Iterable[str] = (), folders: Sequence[Path] = (CONF,)) -> Translation:
    """Overrides and notes for a command line; keys in `given` are left to whoever gives them.

    Raises:
        ConfigError: as of `overrides`.
    """
    given = set(given)
    line = read_line(command)
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
    made |= _formats(line.values, made)
    made |= _scheduler(line.values)
    made |= servers(line.values, _number, lambda: known.has_experts(str(made.get("model", "hf"))), notes)
    made |= {key: value for key, value in _server(line).items() if key.partition(".")[0] not in given}
    if (replaced := line.values.get("--hf-overrides")) and "model" in made:
        made |= hf_overrides(replaced, made["model"], known.positions(made["model"]))
    elif replaced:
        notes.append("--hf-overrides: left out, as model is given beside")
    if chosen := line.values.get("--override-generation-config"):
        notes += generation_notes(chosen)
    if config := line.values.get("--speculative-config"):
        made |= _speculation(config, known, notes)
    groups = given & {"model", "speculation", "frontend"}
    kept = {key: v for key, v in made.items() if key not in given and key.partition(".")[0] not in groups}
    return Translation([f"{key}={quoted(value)}" for key, value in kept.items()], notes)


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
    units = {unit: 1000 ** (power + 1) for power, unit in enumerate("kmgt")}
    units |= {unit: 1024 ** (power + 1) for power, unit in enumerate("KMGT")}
    match = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)([kKmMgGtT]?)", text.strip())
    is_share = key == "gpu_memory_utilization"
    if match and len(match[1]) <= _MOST_DIGITS:
        if not is_share and (match[1].isdigit() or match[2] in tuple("kmgt")):
            return int(float(match[1]) * units.get(match[2], 1))
        if is_share and not match[2]:
            return float(match[1])
    shown = text if len(text) <= _MOST_DIGITS else f"{text[:_MOST_DIGITS]}..."
    raise ConfigError(f"{KEY}: --{key.replace('_', '-')} {shown}: must be a number of at most {_MOST_DIGITS} digits")


def _formats(values: Mapping[str, str], made: Mapping[str, Any]) -> dict[str, Any]:
    formats = {}
    if (dtype := values.get("--dtype", "auto")) != "auto":
        formats["model.dtype"] = _chosen("--dtype", dtype, _DTYPES)
    kv_dtype = _chosen("--kv-cache-dtype", values.get("--kv-cache-dtype", "auto"), _KV_DTYPES)
    if kv_dtype != "auto":
        formats["engine.kv_cache_dtype"] = kv_dtype
    if method := values.get("--quantization"):
        quantization = _chosen("--quantization", method, _QUANTIZATIONS)
        own = made.get("quantization") or made.get("model") == "hf"  # the checkpoint says more than the method
        if quantization is None and not own:
            raise ConfigError(
                f"{KEY}: --quantization {method}: the checkpoint says which format this is; give quantization=..."
            )
        if not own:
            formats["quantization"] = quantization
    return formats


def _chosen(flag: str, value: str, choices: Mapping[str, Any]) -> Any:
    if value not in choices:
        raise ConfigError(f"{KEY}: {flag} {value}: not simulated; choose one of {', '.join(choices)}")
    return choices[value]


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
    if _chosen("--scheduling-policy", policy, {"fcfs": False, "priority": True}):
        made |= {"scheduler.queue": "priority", "scheduler.victim": "least_urgent"}
    return made


def _server(line: Line) -> dict[str, Any]:
    """What the version and the kernels decide that a command line tells."""
    made: dict[str, Any] = {}
    if line.version:
        made["engine.vllm_version"] = line.version
    kernels = [*line.kernels, *(["static_scales"] if line.values.get("--quantization") == "modelopt" else [])]
    if kernels:
        try:
            of_version = vllm_version(line.version).kernels
        except ValueError as error:
            raise ConfigError(f"{KEY}: {error}") from None
        made["cost.profile"] = "+".join(("auto", *of_version, *kernels))
    if size := line.values.get("--max-cudagraph-capture-size"):
        made["engine.max_graph_tokens"] = _number("max_cudagraph_capture_size", size)
    if line.values.get("--enforce-eager") == "true":
        made["engine.max_graph_tokens"] = 0
    return made


def _speculation(text: str, known: KnownModels, notes: list[str]) -> dict[str, Any]:
    """The group `speculation` for the JSON of `--speculative-config`; what is assumed goes to `notes`."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{KEY}: --speculative-config: no JSON ({error})") from None
    if not isinstance(config, dict) or not isinstance(config.get("num_speculative_tokens"), int):
        raise ConfigError(f"{KEY}: --speculative-config: needs num_speculative_tokens, a whole number")
    model = config.get("model")
    method = str(config.get("method") or ("ngram" if model in ("ngram", "[ngram]") else "draft_model")).strip("[]")
    keys = {"method", "model", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max"}
    if more := sorted(set(config) - keys):
        notes.append(f"--speculative-config: {', '.join(more)}: not simulated")
    made: dict[str, Any] = {"speculation": "draft_model"}  # with which no step is planned ahead in simulation
    made["speculation.num_speculative_tokens"] = config["num_speculative_tokens"]
    notes.append(f"--speculative-config: drafts are accepted at a rate that only a measurement tells; {_RATES}")
    if method in ("ngram", "ngram_gpu"):
        low, high = config.get("prompt_lookup_min"), config.get("prompt_lookup_max")
        return made | {
            "speculation": "ngram",
            "speculation.prompt_lookup_min": low or high or 5,
            "speculation.prompt_lookup_max": high or low or 5,
        }
    if method == "draft_model" and isinstance(model, str):
        return made | {"model@speculation.drafter": known.named(model)["model"]}
    if method not in _DRAFT_HEADS:
        raise ConfigError(f"{KEY}: --speculative-config: method {method!r} is not simulated")
    notes.append(f"--speculative-config: the heads of {method} take no time unless speculation.draft_token_s says so")
    return made | {"speculation.drafter": None}


_RATES = "set speculation.acceptance_rate or speculation.acceptance_rates"
