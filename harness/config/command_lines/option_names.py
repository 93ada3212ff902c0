"""Models and devices by the names that people give them: `model=Qwen/Qwen3-8B device=H100`, `model=<its folder>`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.documents import DocumentError, read_yaml, user_path
from harness.config.command_lines.known_models import KnownModels
from harness.config.composing import CONF
from harness.config.device_names import device_option
from harness.config.quoting import quoted
from harness.hub import PREFIX

_CHOICE = re.compile(r"(model|device)=(['\"]?)([^'\"\[\]{}()$]+)\2")


def with_options(arguments: Sequence[str], folders: Sequence[Path] = (CONF,)) -> list[str]:
    """Arguments of run.py in which other names of models and devices, such as `model=Qwen/Qwen3-8B`, are replaced by
    the options of the groups `model` and `device`. Other arguments stay as they are.

    Args:
        folders: configuration trees.
    """
    given = {text.partition("=")[0] for text in arguments}
    return [line for text in arguments for line in _options(text, given, folders)]


def _options(text: str, given: set[str], folders: Sequence[Path]) -> list[str]:
    if (match := _CHOICE.fullmatch(text)) is None:
        return [text]
    group, quote, value = match.groups()
    names = [value] if quote else value.split(",")
    if all(any((folder / group / f"{name}.yaml").is_file() for folder in folders) for name in names):
        return [text]
    find = _device if group == "device" else _model
    made = [find(name.strip(), folders) for name in names]
    if len(made) == 1:
        return [f"{key}={quoted(value)}" for key, value in made[0].items() if key == group or key not in given]
    if any(len(keys) > 1 for keys in made):
        return [text]  # values of a sweep that differ in more than this key
    return [f"{group}={','.join(keys[group] for keys in made)}"]


def _device(name: str, folders: Sequence[Path]) -> dict[str, str]:
    files = [path for folder in folders for path in sorted((folder / "device").glob("*.yaml"))]
    names: dict[str, str] = {path.stem: path.stem for path in files}
    option = device_option(name, names) or device_option(name, names | _written_names(files))
    return {"device": option or name}


def _written_names(files: Sequence[Path]) -> dict[str, str]:
    found = {}
    for path in files:
        try:
            data = read_yaml(path)
        except DocumentError:
            continue  # composing says what is wrong with it, if it is chosen
        if isinstance(data, dict) and isinstance(data.get("name"), str):
            found[path.stem] = data["name"]
    return found


def _model(name: str, folders: Sequence[Path]) -> dict[str, Any]:
    if name.startswith(PREFIX) or os.path.isfile(user_path(name) / "config.json"):
        return {"model": "hf", "model.config": name}
    return KnownModels(folders).alike(name) or {"model": name}
