"""Reads a command line of `vllm serve` as vLLM does, with its short names, underscores and `--no-` switches."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from harness.config.command_lines.config_file import with_config_file
from harness.config.command_lines.tool import Tool, Values, own_flags, read_flags, variable_notes, words_of
from harness.config.command_lines.vllm.flags import NEUTRAL, OTHERS, SHORT
from harness.errors import ConfigError

_OTHER_ENGINE = ("VLLM_USE_V1=0",)
# Flags that have a key of ours.
_OWN: dict[Values, str] = {
    "switch": """
        enable-chunked-prefill enable-prefix-caching scheduler-reserve-full-isl async-scheduling enforce-eager
        enable-expert-parallel language-model-only""",
    "one": """
        model dtype quantization kv-cache-dtype max-model-len max-num-seqs max-num-batched-tokens block-size
        num-gpu-blocks-override api-server-count kv-cache-memory-bytes hf-overrides override-generation-config
        gpu-memory-utilization tensor-parallel-size pipeline-parallel-size data-parallel-size kv-transfer-config
        kv-offloading-size
        long-prefill-token-threshold scheduling-policy speculative-config max-cudagraph-capture-size all2all-backend""",
}
VLLM = Tool(
    name="vLLM",
    release="0.33",
    command=("vllm", "serve"),
    module="vllm.entrypoints.openai.api_server",
    image=re.compile(r"(?:[\w.:-]+/)*vllm-openai(?::v?(?:(\d+\.\d+(?:\.\d+)?)[-.\w]*|[a-zA-Z][-.\w]*))?(?:@[\w:]+)?"),
    own=own_flags(_OWN),
    others=OTHERS,
    neutral=NEUTRAL,
    short={},  # `_normalized` writes the long names
)
_KERNELS = {"VLLM_MXFP4_USE_MARLIN=1": "marlin", "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8=1": "mxfp4_mxfp8"}


class VllmLine(NamedTuple):
    """The parts of `tool.Line`, the version that the command is for, and the kernels that variables ask for."""

    model: str | None
    values: dict[str, str]
    notes: list[str]
    version: str | None
    kernels: tuple[str, ...]


def read_line(command: str) -> VllmLine:
    """Reads the text of a shell command.

    Raises:
        ConfigError: it is no command of vLLM, or a flag of it changes what is served in a way that is not
            simulated.
    """
    variables, version, words = words_of(VLLM, command)
    if any(each in _OTHER_ENGINE for each in variables):
        raise ConfigError(f"{', '.join(variables)}: asks for the engine V0 of early versions, not simulated")
    words, notes = with_config_file(words)
    line = read_flags(VLLM, _normalized(words))
    notes += variable_notes([each for each in variables if each not in _KERNELS])
    kernels = tuple(_KERNELS[each] for each in variables if each in _KERNELS)
    return VllmLine(line.model, line.values, notes + line.notes, version, kernels)


def _normalized(words: list[str]) -> list[str]:
    """The words with dashes in the names of flags, and the parts `--flag.key value` of a flag's JSON as one value."""
    result: list[str] = []
    parts: dict[str, dict[str, Any]] = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        head, part, of_part = name.partition(".")
        flag, dot, key = (_long(head) + part + of_part).partition(".")
        if not word.startswith("-"):
            result.append(word)
        elif dot:
            _put(parts.setdefault(flag, {}), key.split("."), _json(value if equals else next(rest, "")))
        elif name.startswith("-O") and name != "-O":
            result += ["--optimization-level", value or name[2:]]
        else:
            result.append(flag + equals + value)
    for flag, config in parts.items():
        result += [flag, json.dumps(config)]
    return result


def _put(config: dict[str, Any], keys: list[str], value: object) -> None:
    """Sets the value of a key inside of others."""
    for key in keys[:-1]:
        config = config.setdefault(key, {})
        if not isinstance(config, dict):
            raise ConfigError(f"{'.'.join(keys)}: {key} has a value of its own")
    config[keys[-1]] = value


def _long(name: str) -> str:
    dashed = name.replace("_", "-") if name.startswith("--") else name
    return SHORT.get(dashed, dashed)


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
