"""The file that `--config` of vLLM or SGLang names: flags as keys of YAML, which those on the command line override."""

from __future__ import annotations

import json
from collections.abc import Sequence

from engine.documents import errors_as, read_yaml, user_path
from harness.errors import ConfigError

_FLAG = "--config"


def with_config_file(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments with those of the file that `--config` names in front of them, as the tools put them
    (`FlexibleArgumentParser.load_config_file` of vLLM, `ConfigArgumentMerger` of SGLang); and a note on the keys that
    have no effect there.

    Raises:
        ConfigError: the file cannot be read, or its keys are no flags; or there are several files.
    """
    rest: list[str] = []
    files: list[str] = []
    unread = iter(words)
    for word in unread:
        name, equals, value = word.partition("=")
        if name != _FLAG:
            rest.append(word)
        elif (path := value if equals else next(unread, "")) == "":
            raise ConfigError(f"{_FLAG}: expected one argument")
        else:
            files.append(path)
    if len(files) > 1:
        raise ConfigError(f"{_FLAG}: given {len(files)} times; one server has one file")
    if not files:
        return rest, []
    model, flags, notes = _flags_of(files[0])
    if rest and not rest[0].startswith("-"):
        model, rest = rest[:1], rest[1:]
    return [*model, *flags, *rest], notes


def _flags_of(path: str) -> tuple[list[str], list[str], list[str]]:
    """The model that a file names, if it does, the other words that it stands for, and notes."""
    with errors_as(ConfigError, f"{_FLAG} {path}"):
        document = read_yaml(user_path(path))
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise ConfigError(f"{_FLAG} {path}: must hold flags by name")
    model = [str(document.pop(name)) for name in ("model", "model_tag") if document.get(name)]
    words: list[str] = []
    off: list[str] = []
    for key, value in document.items():
        flag = f"--{key.replace('_', '-')}"
        match value:
            case True:
                words.append(flag)
            case False | None:
                off.append(key)
            case list():
                words += [flag, *map(str, value)]
            case dict():
                words += [flag, json.dumps(value)]
            case _:
                words += [flag, str(value)]
    notes = [f"{_FLAG} {path}: {', '.join(off)}: has no effect there"] if off else []
    return model[:1], words, notes
