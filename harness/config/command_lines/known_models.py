"""Which option of the group `model` a command line means by the name of a model."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from engine.documents import errors_as, read_yaml, user_path
from harness.config.schema.traffic.reader import nearest
from harness.errors import ConfigError

# Checkpoints with the sizes of another one that conf/model has.
SAME_SIZES = {
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Llama-3.1-8B",
    "meta-llama/Meta-Llama-3.1-8B": "meta-llama/Llama-3.1-8B",
    "meta-llama/Meta-Llama-3.1-8B-Instruct": "meta-llama/Llama-3.1-8B",
    "meta-llama/Llama-3.1-70B-Instruct": "meta-llama/Llama-3.1-70B",
    "meta-llama/Meta-Llama-3.1-70B-Instruct": "meta-llama/Llama-3.1-70B",
    "meta-llama/Llama-3.1-405B-Instruct": "meta-llama/Llama-3.1-405B",
    "meta-llama/Llama-3.2-1B-Instruct": "meta-llama/Llama-3.2-1B",
    "meta-llama/Llama-3.2-3B-Instruct": "meta-llama/Llama-3.2-3B",
    "mistralai/Mixtral-8x22B-Instruct-v0.1": "mistralai/Mixtral-8x22B-v0.1",
    "mistralai/Mixtral-8x7B-v0.1": "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "deepseek-ai/DeepSeek-R1-0528": "deepseek-ai/DeepSeek-R1",
    "deepseek-ai/DeepSeek-V3-0324": "deepseek-ai/DeepSeek-V3",
    "deepseek-ai/DeepSeek-V3.1": "deepseek-ai/DeepSeek-V3",
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": "meta-llama/Llama-3.1-8B",
    "deepseek-ai/DeepSeek-R1-Distill-Llama-70B": "meta-llama/Llama-3.3-70B-Instruct",
}
# The same but for the longest context, in tokens (max_position_embeddings of their config.json).
OTHER_CONTEXT = {
    "Qwen/Qwen3-4B-Instruct-2507": ("Qwen/Qwen3-4B", 262144),
    "Qwen/Qwen3-4B-Thinking-2507": ("Qwen/Qwen3-4B", 262144),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": ("Qwen/Qwen3-30B-A3B", 262144),
    "Qwen/Qwen3-30B-A3B-Thinking-2507": ("Qwen/Qwen3-30B-A3B", 262144),
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": ("Qwen/Qwen3-30B-A3B", 262144),
    "Qwen/Qwen3-235B-A22B-Instruct-2507": ("Qwen/Qwen3-235B-A22B", 262144),
    "Qwen/Qwen3-235B-A22B-Thinking-2507": ("Qwen/Qwen3-235B-A22B", 262144),
    "Qwen/QwQ-32B": ("Qwen/Qwen2.5-32B-Instruct", 40960),
    "Qwen/QwQ-32B-Preview": ("Qwen/Qwen2.5-32B-Instruct", 32768),
    "meta-llama/Meta-Llama-3-8B": ("meta-llama/Llama-3.1-8B", 8192),
    "meta-llama/Meta-Llama-3-8B-Instruct": ("meta-llama/Llama-3.1-8B", 8192),
    "meta-llama/Meta-Llama-3-70B": ("meta-llama/Llama-3.1-70B", 8192),
    "meta-llama/Meta-Llama-3-70B-Instruct": ("meta-llama/Llama-3.1-70B", 8192),
    "nvidia/AceMath-7B-Instruct": ("Qwen/Qwen2.5-7B-Instruct", 4096),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": ("Qwen/Qwen2.5-7B-Instruct", 131072),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B": ("Qwen/Qwen2.5-14B-Instruct", 131072),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": ("Qwen/Qwen2.5-32B-Instruct", 131072),
}
_CHECKPOINTS = {"-FP8": "fp8_block", "-AWQ": "int4", "-GPTQ-Int4": "int4"}  # of Qwen, by the end of the name
_ALIKE = 0.5  # of the words of two names of models


class KnownModels:
    """The options of the group `model` in configuration trees; their files are read once, when one is asked for."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders

    def named(self, name: str | None) -> dict[str, Any]:
        """Keys of ours for the model of a command line, its name on Hugging Face or its folder.

        Raises:
            ConfigError: no option has this name.
        """
        if name is None:
            raise ConfigError("the command names no model; add it, or give model=... beside it")
        if os.path.exists(user_path(name)):  # False for names that no file can have
            return {"model": "hf", "model.config": name}
        if keys := self._published(name):
            return keys
        hint = _nearest(name, [*self._models, *SAME_SIZES, *OTHER_CONTEXT])
        raise ConfigError(
            f"model {name!r} is none of conf/model{hint}; give the folder of its config.json in its place, or "
            "model=... beside it"
        )

    def _published(self, name: str) -> dict[str, Any] | None:
        """Keys of ours for the name of a checkpoint on Hugging Face; None if no option has its sizes."""
        same, positions = OTHER_CONTEXT.get(name, (SAME_SIZES.get(name, name), None))
        if option := self._models.get(same):
            return {"model": option} | ({"model.max_position_embeddings": positions} if positions else {})
        for ending, quantization in _CHECKPOINTS.items():
            base = name.removesuffix(ending)
            if name.startswith("Qwen/") and base != name and (keys := self._published(base)):
                return {**keys, "quantization": quantization}
        return None

    def alike(self, name: str) -> dict[str, Any] | None:
        """Keys of ours for the name of an option or of a checkpoint, with or without its owner, whatever its capital
        letters; None if none has it."""
        published = [*self._models, *SAME_SIZES, *OTHER_CONTEXT]
        published += [f"{each}{ending}" for each in published for ending in _CHECKPOINTS]
        for each in published:
            if name.lower() in (each.lower(), each.lower().partition("/")[2]) and (keys := self._published(each)):
                return keys
        return next(({"model": option} for option in self._options if option == name.lower()), None)

    def positions(self, option: str) -> int | None:
        """The `max_position_embeddings` that an option states."""
        positions = self._options.get(option, {}).get("max_position_embeddings")
        return positions if isinstance(positions, int) else None

    def has_experts(self, option: str) -> bool | None:
        """Whether an option has experts; None where it does not say it."""
        values = self._options.get(option)
        if values is None or option == "hf":
            return None
        return bool(values.get("num_experts")) or any(each["kind"] == "experts" for each in values.get("blocks", ()))

    @cached_property
    def _models(self) -> dict[str, str]:
        """The options by the names of their models."""
        return {data["name"]: stem for stem, data in self._options.items() if isinstance(data.get("name"), str)}

    @cached_property
    def _options(self) -> dict[str, dict[Any, Any]]:
        """The files of the group by the names of the options."""
        found = {}
        for path in (path for folder in self._folders for path in sorted((folder / "model").glob("*.yaml"))):
            with errors_as(ConfigError, path):
                data = _read(path, path.stat().st_mtime_ns)
            if isinstance(data, dict):
                found[path.stem] = data
        return found


@lru_cache(maxsize=512)
def _read(path: Path, changed_ns: int) -> Any:
    """The option in a file, read again when the file has changed: all files take longer than the rest of a line."""
    return read_yaml(path)


def _nearest(name: str, known: Sequence[str]) -> str:
    """A hint at the known model that shares most words of its name, or its letters where none shares half."""

    def words(text: str) -> set[str]:
        return set(re.split(r"[^a-z0-9.]+", text.lower()))

    def shared(other: str) -> float:
        return len(words(name) & words(other)) / len(words(name) | words(other))

    most = max(map(shared, known), default=0.0)
    return nearest(name, [each for each in known if shared(each) == most] if most >= _ALIKE else known)
