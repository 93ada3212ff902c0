"""Overrides of Hydra for a command line of SGLang; the flags are those of SGLang 0.5.23, whose decisions are predicted
whatever version the command names.

    python -m sglang.launch_server --model-path Qwen/Qwen3-8B --max-running-requests 128
        ->   model=qwen3-8b scheduler=sglang max_num_seqs=128 ...

`harness.config.command_lines.sglang.serve_line` goes the other way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.core.sglang.options import SglangOptions
from engine.core.sglang.queue import SCHEDULE_POLICIES
from harness.config.command_lines import KEYS
from harness.config.command_lines.config_file import with_config_file
from harness.config.command_lines.known_models import KnownModels
from harness.config.command_lines.model_overrides import changed_model, json_object
from harness.config.command_lines.sglang.flags import NEUTRAL, OTHERS, SHORT
from harness.config.command_lines.tool import Tool, Values, own_flags, read_flags, variable_notes, words_of
from harness.config.command_lines.translation import Translation, refused_as, translation
from harness.config.command_lines.values import chosen, decimal, formats, number
from harness.config.composing import CONF
from harness.errors import ConfigError
from simulator.versions.sglang_defaults import MOST_PREFILL_TOKENS, page_size

# Flags that have a key of ours.
_OWN: dict[Values, str] = {
    "none": """
        disable-radix-cache disable-overlap-schedule enable-mixed-chunk disable-cuda-graph disable-decode-cuda-graph
        disable-prefill-cuda-graph disable-cuda-graph-padding""",
    "one": """
        model-path dtype quantization kv-cache-dtype context-length json-model-override-args mem-fraction-static
        max-running-requests max-total-tokens chunked-prefill-size max-prefill-tokens page-size schedule-policy
        schedule-conservativeness scheduler-recv-interval tp-size dp-size load-balance-method cuda-graph-max-bs-decode
        cuda-graph-backend-decode cuda-graph-backend-prefill cuda-graph-config attention-backend
        decode-attention-backend prefill-attention-backend""",
    "many": "cuda-graph-bs-decode",
}
SGLANG = Tool(
    name="SGLang",
    release="0.5.23",
    command=("sglang", "serve"),
    module="sglang.launch_server",
    image=re.compile(r"(?:[\w.:-]+/)*sglang(?::v?(?:(\d+\.\d+(?:\.\d+)?)[-.\w]*|[a-zA-Z][-.\w]*))?(?:@[\w:]+)?"),
    own=own_flags(_OWN),
    others=OTHERS,
    neutral=NEUTRAL,
    short=SHORT,
)
# Formats that SGLang quantises weights to while it loads them, or that name a checkpoint's; None: the checkpoint's own.
_QUANTIZATIONS = {
    "fp8": "fp8", "w8a8_fp8": "fp8", "awq": "int4", "awq_marlin": "int4", "gptq": "int4", "gptq_marlin": "int4",
    "mxfp4": "mxfp4", "modelopt": "fp8", "modelopt_fp8": "fp8", "modelopt_fp4": "nvfp4", "compressed-tensors": None,
}  # fmt: skip
_KV_DTYPES = {"auto": "auto", "bf16": "auto", "bfloat16": "auto", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}
_UNITS = {unit: 1000 ** (power + 1) for power, unit in enumerate("kMGT")}
_UNITS |= {f"{unit.upper()}i": 1024 ** (power + 1) for power, unit in enumerate("kmgt")}
OPTIONS = {
    "schedule_policy": "--schedule-policy", "schedule_conservativeness": "--schedule-conservativeness",
    "scheduler_recv_interval": "--scheduler-recv-interval",
}  # fmt: skip
_DEFAULTS = SglangOptions()
BALANCERS = {"round_robin": "round_robin", "total_requests": "least_requests", "total_tokens": "least_tokens"}
_HOLDS_UP_TO = "--max-total-tokens: taken as given; SGLang takes what its memory holds, if that is less"


@refused_as(KEYS[1])
def translate(command: str, given: Iterable[str] = (), folders: Sequence[Path] = (CONF,)) -> Translation:
    """Overrides and notes for a command line; keys in `given`, which the user sets, are left out.

    Raises:
        ConfigError: a flag is not one of SGLang, or the simulation has nothing like it; or the model is unknown.
    """
    given = set(given)
    variables, version, words = words_of(SGLANG, command)
    words, notes = with_config_file(words)
    line = read_flags(SGLANG, words)
    values = line.values
    notes += [*variable_notes(variables), *line.notes]
    if version not in (None, SGLANG.release):
        notes.append(f"SGLang {version}: predicted as {SGLANG.release}, whose rules and defaults are known")
    known = KnownModels(folders)
    made: dict[str, Any] = {} if "model" in given else known.named(line.model or values.get("--model-path"))
    made |= {"scheduler": "sglang", "frontend": "http"}
    made |= _numbers(values, notes)
    made |= formats(values, made, _KV_DTYPES, _QUANTIZATIONS)
    made |= _scheduler(values)
    made |= _replicas(values)
    if "engine" not in given:
        made |= {"engine.memory_account": "sglang"} | _graphs(values)
    made |= changed_model("--json-model-override-args", values, made, known, notes)
    return translation(made, given, notes)


def _numbers(values: Mapping[str, str], notes: list[str]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "max_num_seqs": "${sglang:max_running_requests}",
        "max_num_batched_tokens": _step_tokens(values),
        "block_size": _page_size(values),
        "tensor_parallel_size": number("--tp-size", values.get("--tp-size", "1")),
        "max_model_len": None,
        "gpu_memory_utilization": "${sglang:mem_fraction_static," + str(_has_prefill_graphs(values)).lower() + "}",
    }
    if share := values.get("--mem-fraction-static"):
        made["gpu_memory_utilization"] = decimal("--mem-fraction-static", share)
    if seats := values.get("--max-running-requests"):
        made["max_num_seqs"] = number("--max-running-requests", seats)
    if longest := values.get("--context-length"):
        made["max_model_len"] = number("--context-length", longest, _UNITS)
    if tokens := values.get("--max-total-tokens"):
        made["num_blocks"] = f"${{sglang:num_blocks,{number('--max-total-tokens', tokens, _UNITS)}}}"
        notes.append(_HOLDS_UP_TO)
    return made


def _step_tokens(values: Mapping[str, str]) -> int | str:
    """Tokens of a step with prompts: of a chunk, which is no more than SGLang's other bound, or without chunks that."""
    chunk = values.get("--chunked-prefill-size")
    most = number("--max-prefill-tokens", values.get("--max-prefill-tokens", str(MOST_PREFILL_TOKENS)), _UNITS)
    if chunk == "-1":
        return most
    tokens = None if chunk is None else number("--chunked-prefill-size", chunk)
    if most < (tokens or MOST_PREFILL_TOKENS):
        raise ConfigError(
            f"--max-prefill-tokens {most}: not simulated where it is less than --chunked-prefill-size; leave it out to "
            "go on"
        )
    return tokens or "${sglang:chunked_prefill_size}"


def _page_size(values: Mapping[str, str]) -> int | str:
    """Tokens of a page; which kernels of attention run where none are asked for is the device's choice."""
    asked = number("--page-size", values.get("--page-size", "1"))
    backends = {part: values.get(f"--{part}attention-backend") for part in ("", "prefill-", "decode-")}
    for backend in backends.values():
        asked = page_size(asked, backend)
    if backends[""] or backends["prefill-"] and backends["prefill-"] == backends["decode-"]:
        return asked
    return f"${{sglang:page_size,{asked}}}"


def _scheduler(values: Mapping[str, str]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if values.get("--chunked-prefill-size") == "-1":
        made["scheduler.enable_chunked_prefill"] = False
    if "--disable-radix-cache" in values:
        made["scheduler.enable_prefix_caching"] = False
    if "--disable-overlap-schedule" in values:
        made["scheduler.async_scheduling"] = False
    if "--enable-mixed-chunk" in values:
        made["scheduler.options.enable_mixed_chunk"] = True
    policy, factor, interval = (values.get(flag) for flag in OPTIONS.values())
    if policy and policy != _DEFAULTS.schedule_policy:
        chosen("--schedule-policy", policy, dict.fromkeys(SCHEDULE_POLICIES))
        made["scheduler.options.schedule_policy"] = policy
    if factor and (share := decimal("--schedule-conservativeness", factor)) != _DEFAULTS.schedule_conservativeness:
        made["scheduler.options.schedule_conservativeness"] = share
    if interval and (steps := number(OPTIONS["scheduler_recv_interval"], interval)) > 1:
        made["scheduler.options.scheduler_recv_interval"] = steps
    return made


def _replicas(values: Mapping[str, str]) -> dict[str, Any]:
    """Data-parallel replicas, of which each is a server of its own."""
    if (replicas := number("--dp-size", values.get("--dp-size", "1"))) == 1:
        return {}
    flag, rules = "--load-balance-method", {"auto": "round_robin"} | BALANCERS
    return {"replicas": replicas, "router": chosen(flag, values.get(flag, "auto"), rules)}


def _graphs(values: Mapping[str, str]) -> dict[str, Any]:
    """The largest CUDA graph of decodes, of the flag that takes precedence, and whether steps are padded to graphs."""
    asked = _asked_of_graphs(values, "decode")
    if asked.get("backend") == "disabled":
        return {"engine.max_graph_tokens": 0}
    sizes = asked.get("bs") or asked.get("max_bs")
    unpadded = {"engine.pads_decodes": False}
    padding = unpadded if "--disable-cuda-graph-padding" in values else {}
    if sizes is None:
        return {"engine.max_graph_tokens": "${sglang:cuda_graph_max_bs}"} | padding
    each = sizes if isinstance(sizes, list) else [sizes]
    numbers = {number("--cuda-graph-max-bs-decode", str(size)) for size in each}
    padding = unpadded if len(numbers) == max(numbers) > 1 else padding  # one for each batch size
    return {"engine.max_graph_tokens": max(numbers)} | padding


def _has_prefill_graphs(values: Mapping[str, str]) -> bool:
    return _asked_of_graphs(values, "prefill").get("backend") != "disabled"


def _asked_of_graphs(values: Mapping[str, str], phase: str) -> dict[str, Any]:
    """The parts of `--cuda-graph-config` for a phase, from its other flags where they say them."""
    asked: dict[str, Any] = {}
    if "--disable-cuda-graph" in values or f"--disable-{phase}-cuda-graph" in values:
        asked["backend"] = "disabled"
    if backend := values.get(f"--cuda-graph-backend-{phase}"):
        asked["backend"] = backend
    if largest := values.get(f"--cuda-graph-max-bs-{phase}"):
        asked["max_bs"] = largest
    if sizes := values.get(f"--cuda-graph-bs-{phase}"):
        asked["bs"] = sizes.split()
    if text := values.get("--cuda-graph-config"):
        part = json_object("--cuda-graph-config", text).get(phase)
        asked |= part if isinstance(part, dict) else {}
    return asked
