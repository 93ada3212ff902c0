"""The configuration tree as data: every group, its options, and their keys with defaults and explanations.

A key is explained by the docstring of its class in the schema, or else by the comment beside or above it in the file.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from engine.documents import errors_as, read_yaml
from harness.config.composing.option_sets import OPEN_KEYS, OPTION_SETS, attribute_texts, explained, explained_settings
from harness.config.run import RunConfig
from harness.config.schema.traffic.reader import models_in, tag_of
from harness.config.targets import options_type_of
from harness.errors import ConfigError

_PRESETS = "experiment"  # this group sets the keys of others
_LINE = re.compile(r"( *)([\w-]+):(?: +([^#\s].*?))?(?: +# (.*))?")


@dataclass(frozen=True)
class Key:
    """A key that can be set.

    Attributes:
        name: as on the command line, such as `arrival.rate`.
        value: the default, as on the command line.
        text: what the key means.
        comment: what the file says about this value.
        options: the options of the group that have the key; empty when all have it.
    """

    name: str
    value: str
    text: str
    comment: str = ""
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Option:
    """An option of a group, when to choose it, and its keys in the order of its file."""

    name: str
    text: str
    keys: tuple[Key, ...]


@dataclass(frozen=True)
class Group:
    """Options that are swapped with `group=option`, or keys of conf/config.yaml that share a prefix.

    Attributes:
        default: the option that is taken when none is chosen; None for a group that has no such option.
        keys: the keys of all options; a key is there once for each of its explanations.
    """

    name: str
    default: str | None
    options: tuple[Option, ...]
    keys: tuple[Key, ...]


def read_tree(folders: Sequence[Path]) -> list[Group]:
    """All groups in `folders`: the first is the tree of this project, the others add options, as `--config-dir` does.

    Raises:
        ConfigError: a file is not that of an option.
    """
    main = folders[0] / "config.yaml"
    entries = [entry for entry in _document(main).get("defaults", []) if isinstance(entry, Mapping)]
    defaults = {str(name): option for entry in entries for name, option in entry.items() if " " not in name}
    below = {path.relative_to(folder).as_posix() for folder in folders for path in folder.rglob("*") if path.is_dir()}
    order = [*defaults, *sorted({name.partition("/")[0] for name in below} - defaults.keys())]
    names = sorted(below, key=lambda name: (order.index(name.partition("/")[0]), name))
    groups = [_group(folders, name, defaults.get(name)) for name in names]
    return [group for group in groups if group.options] + _key_groups(main)


def _group(folders: Sequence[Path], name: str, default: str | None) -> Group:
    paths = {path.stem: path for folder in folders for path in (folder / name).glob("*.yaml")}
    options = tuple(_option(folders, name, path) for _, path in sorted(paths.items()))
    merged: dict[tuple[str, str], Key] = {}
    for option in sorted(options, key=lambda option: option.name != default):
        for key in option.keys:
            known = merged.setdefault((key.name, key.text), key)
            merged[key.name, key.text] = replace(known, options=(*known.options, option.name))
    keys = (replace(key, options=() if len(key.options) == len(options) else key.options) for key in merged.values())
    return Group(name, default, options, tuple(keys))


def _option(folders: Sequence[Path], group: str, path: Path) -> Option:
    keys = {} if group == _PRESETS else {key.name: key for key in _keys_of(folders, group, path)}
    models = models_in(RunConfig.model_fields[group].annotation) if group in RunConfig.model_fields else []
    if kind := keys.pop("kind", None):
        models = [model for model in models if tag_of(model) == kind.value]
    if (options_type := _settings_of(group, keys)) is not None:
        settings = explained_settings(options_type)
        keys |= {f"options.{name}": Key(f"options.{name}", _show(value), text) for name, value, text in settings}
    prefix = f"{group}." if "/" not in group else ""
    found = [replace(key, name=prefix + key.name, text=_text(key, models)) for key in keys.values()]
    return Option(path.stem, _comment(path), tuple(found))


def _settings_of(group: str, keys: Mapping[str, Key]) -> type[Any] | None:
    """What declares the settings of the policy or the routing rule that an option chooses, if it can be asked."""
    kind = {"scheduler": "policy", "router": "rule"}.get(group)
    return options_type_of(group, keys[kind].value) if kind and kind in keys else None


def _keys_of(folders: Sequence[Path], group: str, path: Path) -> Iterator[Key]:
    """The keys of an option, those of the options in its defaults list first. A later key replaces one of its name."""
    entries = _document(path).get("defaults") or []
    for entry in entries:
        name, option = next(iter(entry.items())) if isinstance(entry, Mapping) else (str(entry), None)
        name, _, package = name.partition("@")
        prefix = f"{package}." if package not in ("", "_here_") else ""
        yield from (replace(key, name=prefix + key.name) for key in _included(folders, group, name, option))
    yield from _file_keys(path)


def _included(folders: Sequence[Path], group: str, name: str, option: str | None) -> Iterator[Key]:
    """The keys that an entry of a defaults list in `group` brings: `name: option`, or an option `name` alone."""
    if name.removeprefix("/schema/open_") in OPEN_KEYS:
        return  # the file that includes it states the key
    if name.startswith("/schema/") and option is None:
        _, model = OPTION_SETS[name.removeprefix("/schema/")]
        yield from (Key(key, _show(value), text) for key, value, text in explained(model))
        return
    place = name.removeprefix("/") if name.startswith("/") else f"{group}/{name}"
    inner, _, last = f"{place}/{option}".rpartition("/") if option is not None else place.rpartition("/")
    for path in (folder / inner / f"{last}.yaml" for folder in folders):
        if path.is_file():
            yield from (key for key in _keys_of(folders, inner, path) if key.name != "kind" or inner == group)


def _file_keys(path: Path) -> Iterator[Key]:
    """The keys that the file itself states, with the comments beside and above them, or of the key they are in."""
    parents: list[tuple[int, str, str]] = []  # indentation, name and comment
    above: list[str] = []
    num_open = 0  # braces of a mapping that goes on in the next line
    for line in path.read_text(encoding="utf-8").splitlines():
        goes_on, num_open = num_open > 0, num_open + line.count("{") - line.count("}")
        if goes_on:
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            text = line.strip()
            is_comment = text.startswith("# ") and not text.startswith(("# Choose ", "# @"))
            above = [*above, text.removeprefix("# ")] if is_comment else []
            continue
        indent, name, value, beside = match.groups()
        parents = [parent for parent in parents if parent[0] < len(indent)]
        comment = " ".join([*above, beside or ""]).strip() or (parents[-1][2] if parents else "")
        parents.append((len(indent), name, comment))
        if value is not None and parents[0][1] not in ("defaults", "hydra"):
            yield Key(".".join(name for _, name, _ in parents), value, comment, comment)
        above = []


def _key_groups(main: Path) -> list[Group]:
    """The keys of conf/config.yaml: those that stand alone under the name "", the others by their prefix."""
    groups: dict[str, list[Key]] = {}
    for key in _file_keys(main):
        groups.setdefault(key.name.rpartition(".")[0], []).append(key)
    return [Group(name, None, (), tuple(keys)) for name, keys in groups.items()]


def _text(key: Key, models: Sequence[type[BaseModel]]) -> str:
    """What the schema says about the key, or else what is said where it stands, or else about the key it is in."""
    path = key.name.split(".")
    return _schema_text(models, path) or key.text or _schema_text(models, path[:1])


def _schema_text(models: Sequence[type[BaseModel]], path: Sequence[str]) -> str:
    """What the schema's docstrings say about a key; empty where they say nothing."""
    for model in models:
        field = model.model_fields.get(path[0])
        if field is not None and len(path) == 1:
            return attribute_texts(model).get(path[0], "")
        if field is not None:
            return _schema_text(models_in(field.annotation), path[1:])
    return ""


def _show(default: Any) -> str:
    """A default as it is written on the command line."""
    return "null" if default is None else str(default).lower() if isinstance(default, bool) else str(default)


def _document(path: Path) -> Mapping[str, Any]:
    with errors_as(ConfigError, path):
        document = read_yaml(path)
    if document is not None and not isinstance(document, Mapping):
        raise ConfigError(f"{path}: must hold keys with values")
    return document or {}


def _comment(path: Path) -> str:
    """When to choose the option: the first comment line of its file that is not Hydra's own `# @package`."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comments = [line.removeprefix("# ") for line in lines if line.startswith("# ") and not line.startswith("# @")]
    return comments[0].removeprefix("Choose ") if comments else ""
