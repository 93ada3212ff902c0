"""Reads a command line of `vllm serve` as vLLM does, with its short names, underscores and `--no-` switches."""

from __future__ import annotations

import argparse
import functools
import json
import re
import shlex
from itertools import pairwise, takewhile
from typing import Any, NamedTuple, NoReturn

from harness.config.command_lines.vllm_config_file import KEY as KEY
from harness.config.command_lines.vllm_config_file import with_config_file
from harness.config.command_lines.vllm_flags import NEUTRAL, OTHERS, SHORT
from harness.config.schema.reader import nearest
from harness.errors import ConfigError

_OTHER_ENGINE = ("VLLM_USE_V1=0",)
# Flags that have a key of ours; a switch is read as "true" or "false".
_SWITCHES = (
    "--enable-chunked-prefill",
    "--enable-prefix-caching",
    "--scheduler-reserve-full-isl",
    "--async-scheduling",
    "--enforce-eager",
    "--enable-expert-parallel",
)
_NUMBERS_AND_NAMES = (
    "--model",
    "--dtype",
    "--quantization",
    "--kv-cache-dtype",
    "--max-model-len",
    "--max-num-seqs",
    "--max-num-batched-tokens",
    "--block-size",
    "--num-gpu-blocks-override",
    "--api-server-count",
    "--kv-cache-memory-bytes",
    "--hf-overrides",
    "--override-generation-config",
    "--gpu-memory-utilization",
    "--tensor-parallel-size",
    "--pipeline-parallel-size",
    "--data-parallel-size",
    "--kv-transfer-config",
    "--long-prefill-token-threshold",
    "--scheduling-policy",
    "--speculative-config",
    "--max-cudagraph-capture-size",
)
_IMAGE = re.compile(r"(?:[\w.:-]+/)*vllm-openai(?::v?(?:(\d+\.\d+(?:\.\d+)?)[-.\w]*|[a-zA-Z][-.\w]*))?(?:@[\w:]+)?")
_VERSION = re.compile(r"\s#[^\n]*?\bvLLM (\d+\.\d+(?:\.\d+)?)")  # in a comment, as of `serve_command`
_SERVER_MODULE = ["-m", "vllm.entrypoints.openai.api_server"]
# Of the shell: what starts a command, and what ends it or sends its output elsewhere.
_STARTERS = ("nohup", "sudo", "exec", "time", "env", "uv", "run")
_ENDS = re.compile(r"[|&;]{1,2}|\d?>.*|&>.*")
# Of docker: `-e NAME=value` before the image.
_VARIABLE_FLAGS = ("-e", "--env")
_KERNELS = {"VLLM_MXFP4_USE_MARLIN=1": "marlin", "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8=1": "mxfp4_mxfp8"}


class Line(NamedTuple):
    """The model, the values of the flags that have a key of ours, and a note on each kind of other flags.

    `version` is that of the image of docker, where the command runs one, or of a comment; `kernels` those that
    variables ask for.
    """

    model: str | None
    values: dict[str, str]
    notes: list[str]
    version: str | None = None
    kernels: tuple[str, ...] = ()


class _Parser(argparse.ArgumentParser):
    def read(self, words: list[str]) -> dict[str, Any]:
        """The values of the flags by name; raises ConfigError for words that are none."""
        found, others = self.parse_known_args(words)
        for flag in (word.partition("=")[0] for word in others if word.startswith("-")):
            raise ConfigError(f"{KEY}: {flag}: no flag of vLLM 0.33{nearest(flag, self._option_string_actions)}")
        if others:
            raise ConfigError(f"{KEY}: unrecognized arguments: {shlex.join(others)}")
        return vars(found)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{KEY}: {message}")


def read_line(command: str) -> Line:
    """Reads the text of a shell command; comments and line continuations are allowed.

    Raises:
        ConfigError: it is no command of vLLM, or a flag of it changes what is served in a way that is not
            simulated.
    """
    variables, version, words = _words(command)
    if version is None and (comment := _VERSION.search(command)):
        version = comment[1]
    kernels = tuple(_KERNELS[each] for each in variables if each in _KERNELS)
    variables = [each for each in variables if each not in _KERNELS]
    words, notes = with_config_file(words)
    found = _parser().read(_normalized(words))
    model = found.pop("model_tag") or found.get("--model")
    found.pop("--model", None)
    values = {name: _text(value) for name, value in found.items() if name not in OTHERS}
    others = {name: _text(value) for name, value in found.items() if name in OTHERS}
    for name, value in others.items():
        if OTHERS[name].effect == "refused" and value not in (NEUTRAL.get(name), "false"):
            shown = name if value == "true" else f"{name} {value}"
            raise ConfigError(f"{KEY}: {shown}: not simulated, and it changes what is served; leave it out to go on")
    if variables:
        notes.append(f"{', '.join(variables)}: environment variables are not simulated; they may change what is served")
    texts = {"times": "not simulated; it may change the times of steps", "none": "left out",
             "past": "of earlier versions of vLLM, left out"}  # fmt: skip
    for effect, text in texts.items():
        if names := [name for name in others if OTHERS[name].effect == effect]:
            notes.append(f"{', '.join(names)}: {text}")
    return Line(model, values, notes, version, kernels)


def _words(command: str) -> tuple[list[str], str | None, list[str]]:
    """The environment variables, the version of docker's image, and the arguments after `vllm serve`, after the module
    of the server, or after the image."""
    try:
        words = shlex.split(command.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise ConfigError(f"{KEY}: not a command line ({error})") from None
    words = list(takewhile(lambda word: not _ENDS.fullmatch(word), words))
    before = list(takewhile(lambda word: word in _STARTERS or re.fullmatch(r"\w+=.*", word, re.DOTALL), words))
    variables = [word for word in before if word not in _STARTERS]
    words = words[len(before) :]
    if any(each in _OTHER_ENGINE for each in variables):
        raise ConfigError(f"{KEY}: {', '.join(variables)}: asks for the engine V0 of early versions, not simulated")
    if words[:2] == ["vllm", "serve"]:
        return variables, None, words[2:]
    modules = [at for at, pair in enumerate(pairwise(words)) if list(pair) == _SERVER_MODULE]
    if modules and words[0].startswith("python"):
        return variables, None, words[modules[0] + 2 :]
    images = [at for at, word in enumerate(words) if _IMAGE.fullmatch(word)]
    if words[:1] == ["docker"] and images:
        own, image = words[: images[0]], _IMAGE.fullmatch(words[images[0]])
        variables += [after for flag, after in pairwise(own) if flag in _VARIABLE_FLAGS]
        rest = words[images[0] + 1 :]
        return variables, image[1] if image else None, rest[2:] if rest[:2] == ["vllm", "serve"] else rest
    raise ConfigError(f"{KEY}: {command!r}: must be a command line that starts with vllm serve")


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
            raise ConfigError(f"{KEY}: {'.'.join(keys)}: {key} has a value of its own")
    config[keys[-1]] = value


def _long(name: str) -> str:
    dashed = name.replace("_", "-") if name.startswith("--") else name
    return SHORT.get(dashed, dashed)


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _text(value: object) -> str:
    """A value as it stands on the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(value) if isinstance(value, list) else str(value)


@functools.cache
def _parser() -> _Parser:
    parser = _Parser(prog="vllm serve", add_help=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("model_tag", nargs="?", default=None)
    for name in _SWITCHES:
        parser.add_argument(name, dest=name, action=argparse.BooleanOptionalAction)
    for name in _NUMBERS_AND_NAMES:
        parser.add_argument(name, dest=name)
    for name, flag in OTHERS.items():
        if flag.values == "none":
            parser.add_argument(name, dest=name, action=argparse.BooleanOptionalAction)
        else:
            parser.add_argument(name, dest=name, nargs="*" if flag.values == "many" else None)
    return parser
