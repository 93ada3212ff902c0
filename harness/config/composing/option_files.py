"""Options of groups, read from their own files: a sweep over ten models and ten schedulers reads twenty files.

A file of an option sets its own group only, unless it names a package. So model=tiny scheduler=mixed is the default
configuration, in which the group `model` is what one file says, and the group `scheduler` what another one says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import DictConfig, OmegaConf, open_dict


class _OthersError(Exception):
    """A file chooses options of other groups, or leaves the order of what it is made of to Hydra."""


def sets_its_group(sources: Sequence[ConfigSource], group: str, option: str) -> bool:
    """Whether a file sets a group of the whole configuration, and nothing beside it."""
    file = _load(sources, f"{group}/{option}")
    return file is not None and file.header.get("package") is None and "_global_" not in str(_defaults(file))


def read_option(sources: Sequence[ConfigSource], group: str, option: str) -> DictConfig | None:
    """What the file of an option says of its group; None if it chooses options of other groups, for Hydra to merge."""
    merged = OmegaConf.create()
    try:
        for part in _parts(sources, group, f"{group}/{option}"):
            merged.merge_with({group: part})
    except _OthersError:
        return None
    found: DictConfig = merged[group]
    return found


def _parts(sources: Sequence[ConfigSource], group: str, path: str) -> Iterator[DictConfig]:
    """What a file is made of, in the order of merging: option sets, other options of its group, and itself."""
    file = _load(sources, path)
    if file is None or not isinstance(file.config, DictConfig):
        raise _OthersError
    names = _defaults(file)
    if "_self_" not in names:
        raise _OthersError
    for name in names:
        if name == "_self_":
            with open_dict(file.config):
                file.config.pop("defaults", None)
            yield file.config
        elif isinstance(name, str) and name.startswith("/schema/") and name.endswith("@_here_"):
            yield from _parts(sources, group, name.removeprefix("/").removesuffix("@_here_"))
        elif isinstance(name, str) and not set(name) & set("/@: "):
            yield from _parts(sources, group, f"{group}/{name}")
        else:
            raise _OthersError


def _defaults(file: ConfigResult) -> list[Any]:
    """The list of what a file begins with; the file alone if it has none."""
    has_list = isinstance(file.config, DictConfig) and "defaults" in file.config
    found: Any = OmegaConf.to_container(file.config)["defaults"] if has_list else ["_self_"]  # type: ignore[index, call-overload]
    return list(found)


def _load(sources: Sequence[ConfigSource], path: str) -> ConfigResult | None:
    """The first file of this name; None where no folder has one."""
    source = next((each for each in sources if each.is_config(path)), None)
    return None if source is None else source.load_config(path)


def put(cfg: DictConfig, options: Mapping[str, tuple[str, DictConfig]]) -> None:
    """Chooses options: by group their names, and what `read_option` found of them."""
    with open_dict(cfg):
        for group, (name, content) in options.items():
            cfg[group] = content
            cfg.hydra.runtime.choices[group] = name
