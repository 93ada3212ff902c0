"""Overrides of Hydra for a command line of TensorRT-LLM, with the file of its `--config`; the flags are those of 1.2.

trtllm-serve Qwen/Qwen3-8B --max_batch_size 128 --extra_llm_api_options options.yml
    ->   model=qwen3-8b scheduler=trtllm max_num_seqs=128 ...

`harness.config.command_lines.trtllm.serve_line` goes the other way. Its comment `# options.yml is {...}` stands for the
file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.core.trtllm.chunking import SHARES
from engine.core.trtllm.options import CAPACITY_POLICIES
from engine.documents import errors_as, read_yaml, user_path
from harness.config.command_lines import KEYS
from harness.config.command_lines.known_models import KnownModels
from harness.config.command_lines.tool import Tool, Values, own_flags, read_flags, table, variable_notes, words_of
from harness.config.command_lines.translation import Translation, refused_as, translation
from harness.config.command_lines.values import chosen, decimal, number
from harness.config.composing import CONF
from harness.errors import ConfigError

_OWN: dict[Values, str] = {
    "none": "enable_chunked_prefill",
    "one": """
        max_batch_size max_num_tokens max_seq_len tensor_parallel_size pipeline_parallel_size moe_expert_parallel_size
        free_gpu_memory_fraction config""",
}
TRTLLM = Tool(
    name="TensorRT-LLM",
    release="1.2",
    command=("trtllm-serve",),
    module="tensorrt_llm.commands.serve",
    image=re.compile(r"(?:[\w.:-]+/)*tensorrt-llm(?:/release)?(?::v?(\d+\.\d+(?:\.\d+)?)[-.\w]*)?(?:@[\w:]+)?"),
    own=own_flags(_OWN),
    others=table(
        {
            ("none", "none"): "trust_remote_code fail_fast_on_attention_window_too_large",
            ("one", "none"): """
                tokenizer custom_tokenizer host port custom_module_dirs log_level gpus_per_node revision
                reasoning_parser tool_parser otlp_traces_endpoint media_io_kwargs chat_template""",
            ("one", "times"): "num_postprocess_workers",
            ("one", "refused"): """
                backend max_beam_width context_parallel_size moe_cluster_parallel_size metadata_server_config_file
                server_role disagg_cluster_uri""",
        }
    ),
    neutral={
        "--backend": "pytorch", "--max_beam_width": "1", "--context_parallel_size": "1",
        "--moe_cluster_parallel_size": "1",
    },
    short={
        "--tp_size": "--tensor_parallel_size", "--pp_size": "--pipeline_parallel_size",
        "--ep_size": "--moe_expert_parallel_size", "--cp_size": "--context_parallel_size",
        "--cluster_size": "--moe_cluster_parallel_size", "--extra_llm_api_options": "--config",
        "--kv_cache_free_gpu_memory_fraction": "--free_gpu_memory_fraction",
    },
)  # fmt: skip
# Of the file: keys without an effect on a simulation, and those that change what is served unless they have this value.
_WITHOUT_EFFECT = (
    "print_iter_log", "stream_interval", "trust_remote_code", "tokenizer", "reasoning_parser",
    "num_postprocess_workers", "moe_config", "attn_backend", "enable_iter_perf_stats", "backend",
    "gpus_per_node",
    "scheduler_config.dynamic_batch_config", "kv_cache_config.enable_partial_reuse", "attention_dp_config",
    "kv_cache_config.event_buffer_max_size", "allreduce_strategy", "enable_autotuner",
)  # fmt: skip
_REFUSED: dict[str, Any] = {
    "enable_attention_dp": False, "speculative_config": None, "kv_cache_config.host_cache_size": 0,
    "batch_wait_timeout_ms": 0,
    "pipeline_parallel_size": 1, "cache_transceiver_config": None, "kv_cache_config.max_attention_window": None,
}  # fmt: skip
OPTIONS_FILE = "options.yml"
DEFAULT_BLOCK_SIZE = 32
_KV_DTYPES = {"auto": "auto", "bfloat16": "auto", "float16": "auto", "fp8": "fp8"}
_NUMBERS = {  # keys of ours, and what they are without the flag
    "max_batch_size": ("max_num_seqs", 2048),
    "max_num_tokens": ("max_num_batched_tokens", 8192),
    "max_seq_len": ("max_model_len", None),
    "tensor_parallel_size": ("tensor_parallel_size", 1),
    "kv_cache_config.tokens_per_block": ("block_size", DEFAULT_BLOCK_SIZE),
}


@refused_as(KEYS[2])
def translate(command: str, given: Iterable[str] = (), folders: Sequence[Path] = (CONF,)) -> Translation:
    """Overrides and notes for a command line; keys in `given`, which the user sets, are left out.

    Raises:
        ConfigError: a flag or a key of the file is none of TensorRT-LLM, or the simulation has nothing like it; or the
            model is unknown.
    """
    given = set(given)
    start = command.find(TRTLLM.command[0])  # behind mpirun or trtllm-llmapi-launch
    launched = command[:start].lstrip().startswith(("mpirun", "trtllm-llmapi-launch"))
    variables, version, words = words_of(TRTLLM, command[start:] if launched else command)
    line = read_flags(TRTLLM, words[1:] if words[:1] == ["serve"] else words)
    notes = [*variable_notes(variables), *line.notes]
    if version:
        notes.append(f"TensorRT-LLM {version}: predicted by the rules that are known, whatever the version")
    values: dict[str, Any] = {name.removeprefix("--"): value for name, value in line.values.items()}
    if path := values.pop("config", None):
        values |= _file(path, _written(path, command), notes)
    made: dict[str, Any] = {} if "model" in given else KnownModels(folders).named(line.model)
    made |= {"scheduler": "trtllm", "frontend": "http"} | _numbers(values) | _rules(values)
    if "engine" not in given:
        made |= {"engine.memory_account": "trtllm"}
        kv_dtype = chosen("kv_cache_config.dtype", str(values.pop("kv_cache_config.dtype", "auto")), _KV_DTYPES)
        made |= {} if kv_dtype == "auto" else {"engine.kv_cache_dtype": kv_dtype}
        made |= _graphs(values, notes)
    for name, neutral in _REFUSED.items():
        if name in values and str(values.pop(name)) not in (str(neutral), "None"):
            raise ConfigError(f"{name}: not simulated, and it changes what is served; leave it out to go on")
    if values:
        raise ConfigError(f"{next(iter(values))}: no key of TensorRT-LLM {TRTLLM.release} that is known here")
    return translation(made, given, notes)


def _written(path: str, command: str) -> Any:
    """The content of the file, as a comment of the line has it; None without one."""
    mark = f" {OPTIONS_FILE} is "
    if path != OPTIONS_FILE or mark not in command:
        return None
    try:
        return json.JSONDecoder().raw_decode(command, command.index(mark) + len(mark))[0]
    except ValueError as error:
        raise ConfigError(f"#{mark}: no JSON ({error})") from None


def _graphs(values: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """The largest decode batch with a CUDA graph, of `cuda_graph_config`, which is null for none."""
    if "cuda_graph_config" not in values:
        return {}
    graphs = values.pop("cuda_graph_config")
    if graphs is None:
        return {"engine.max_graph_tokens": 0}
    if not isinstance(graphs, dict):
        raise ConfigError(f"cuda_graph_config {graphs}: must be null or hold options by name")
    if more := sorted(set(graphs) - {"max_batch_size"}):
        notes.append(f"cuda_graph_config: {', '.join(more)}: not simulated; it may change the times of steps")
    if (most := graphs.get("max_batch_size")) is None:
        return {}
    return {"engine.max_graph_tokens": number("cuda_graph_config.max_batch_size", str(most))}


def _file(path: str, document: Any, notes: list[str]) -> dict[str, Any]:
    """The keys of the file, or of `document` in its place, those of a part with its name before them; raises
    ConfigError if it cannot be read."""
    if document is None:
        with errors_as(ConfigError, f"--config {path}"):
            document = read_yaml(user_path(path))
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise ConfigError(f"--config {path}: must hold options by name")
    found: dict[str, Any] = {}
    for name, value in document.items():
        inner = isinstance(value, dict) and name in ("kv_cache_config", "scheduler_config")
        found |= {f"{name}.{each}": part for each, part in value.items()} if inner else {name: value}
    if left_out := [name for name in found if name in _WITHOUT_EFFECT]:
        notes.append(f"--config {path}: {', '.join(left_out)}: not simulated; it may change the times of steps")
    return {name: value for name, value in found.items() if name not in _WITHOUT_EFFECT}


def _numbers(values: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, (key, default) in _NUMBERS.items():
        value = values.pop(name, None)
        made[key] = default if value is None else number(name, str(value))
    share = values.pop("kv_cache_config.free_gpu_memory_fraction", values.pop("free_gpu_memory_fraction", None))
    values.pop("free_gpu_memory_fraction", None)
    made["gpu_memory_utilization"] = 0.9 if share is None else decimal("free_gpu_memory_fraction", str(share))
    if (tokens := values.pop("kv_cache_config.max_tokens", None)) is not None:
        made["num_blocks"] = -(-number("kv_cache_config.max_tokens", str(tokens)) // made["block_size"])
    experts = values.pop("moe_expert_parallel_size", None)
    if experts is not None and (ranks := number("moe_expert_parallel_size", str(experts))) > 1:
        if ranks != made["tensor_parallel_size"]:
            raise ConfigError(f"moe_expert_parallel_size {ranks}: simulated with 1 or as many ranks as share the rest")
        made["expert_parallel"] = True
    return made


def _rules(values: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, key, default in (
        ("enable_chunked_prefill", "scheduler.enable_chunked_prefill", False),
        ("kv_cache_config.enable_block_reuse", "scheduler.enable_prefix_caching", True),
        ("disable_overlap_scheduler", "scheduler.async_scheduling", False),
    ):
        is_on = _flag(name, values.pop(name, default))
        if is_on != default:
            made[key] = not is_on if name.startswith("disable") else is_on
    for name, known in (("capacity_scheduler_policy", CAPACITY_POLICIES), ("context_chunking_policy", (*SHARES,))):
        policy = values.pop(f"scheduler_config.{name}", None)
        choices: Mapping[str, str] = {each.upper(): each for each in known}
        if policy is not None and (rule := chosen(name, str(policy), choices)) != known[0]:
            made[f"scheduler.options.{name}"] = rule
    for name, read in (("batch_wait_timeout_iters", number), ("batch_wait_max_tokens_ratio", decimal)):
        if (value := read(name, str(values.pop(name, 0)))) != 0:
            made[f"scheduler.options.{name}"] = value
    return made


def _flag(name: str, value: Any) -> bool:
    if str(value).lower() not in ("true", "false"):
        raise ConfigError(f"{name} {value}: must be true or false")
    return str(value).lower() == "true"
