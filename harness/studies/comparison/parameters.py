"""What tells runs apart: the groups and keys that were swept, the load, and the seed, which repeats a configuration.

A group whose option was swept, such as `scheduler=mixed,vllm`, is one parameter named after the group, with the names
of the options as values; keys that follow from it are none. The names of options come from Hydra's choices, which
Hydra writes to `.hydra/hydra.yaml` in the folder of a job. Without them the key that defines the group stands for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.documents import DocumentError, parse_yaml, read_text

LOADS = ("arrival.rate", "arrival.concurrency", "arrival.time_scale")
SEED = "seed"
# keys that do not decide the outcome of a run
_NOT_SWEPT = ("task", "results", "progress", "plots", "plot", "report", "verbose", "figures", "exports", "sinks")
_DEFINING = ("kind", "name", "policy")
_ANY_KEY = "experiment"  # the group whose options set keys of other groups
_CHOICES = re.compile(r"^    choices:\n((?:      .*\n)+)", re.MULTILINE)


@dataclass(frozen=True)
class Settings:
    """What one run was set to: values by dotted key, and names of options by group."""

    keys: Mapping[str, Any]
    choices: Mapping[str, Any]


@dataclass(frozen=True)
class Swept:
    """What differs between runs.

    Attributes:
        parameters: the groups and keys that tell configurations apart.
        load: the key of the load, along which a configuration is a curve.
        repeats: whether runs of the same configuration and load differ in their seeds.
    """

    parameters: list[str]
    load: str | None
    repeats: bool


def read_settings(folder: Path, config: Mapping[str, Any]) -> Settings:
    """The settings of the run in `folder` with the stored configuration `config`."""
    return Settings(_flat(config), _read_choices(folder / ".hydra" / "hydra.yaml"))


def find_swept(runs: Sequence[Settings]) -> Swept:
    """What differs between runs, in the order of the configuration."""
    keys = dict.fromkeys(key for run in runs for key in run.keys if key.split(".")[0] not in _NOT_SWEPT)
    differing = [key for key in keys if _differs([run.keys.get(key) for run in runs])]
    groups = [group for group in _common_groups(runs) if _differs([run.choices[group] for run in runs])]
    names = list(dict.fromkeys(_parameter(key, differing, groups, runs) for key in differing))
    swept = [name for name in names if name is not None]
    loads = [name for name in LOADS if name in swept and all(_is_number(run.keys.get(name)) for run in runs)]
    load = max(loads, key=lambda name: len({run.keys[name] for run in runs}), default=None)
    return Swept([name for name in swept if name not in (load, SEED)], load, SEED in swept)


def value_of(run: Settings, name: str) -> Any:
    """The value of a parameter: that of a key, or the name of the option of a group."""
    return run.keys[name] if name in run.keys else run.choices.get(name)


def _parameter(key: str, differing: Sequence[str], groups: Sequence[str], runs: Sequence[Settings]) -> str | None:
    """The parameter that a differing key stands for: its group, itself, or none where it follows from another key."""
    values = [run.keys.get(key) for run in runs]
    for group in groups:
        sets = group == _ANY_KEY or key.startswith(f"{group}.")
        if sets and key not in (SEED, *LOADS) and _follow(values, [run.choices[group] for run in runs]):
            return group
    group = key.split(".")[0]
    leaders = [name for name in (f"{group}.{last}" for last in _DEFINING) if name in differing]
    leaders = leaders[: leaders.index(key)] if key in leaders else leaders
    follows = any(_follow(values, [run.keys.get(leader) for run in runs]) for leader in leaders)
    return None if follows else key


def _follow(values: Sequence[Any], leader: Sequence[Any]) -> bool:
    """Whether runs that are equal in the leader are equal in the values."""
    return len(set(zip(leader, values, strict=True))) == len(set(leader))


def _differs(values: Sequence[Any]) -> bool:
    return len(set(values)) > 1


def _common_groups(runs: Sequence[Settings]) -> list[str]:
    """The groups of which every run knows its option; `experiment` first."""
    common = [group for group in (runs[0].choices if runs else ()) if all(group in run.choices for run in runs)]
    return sorted(common, key=lambda group: group != _ANY_KEY)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys joined by dots; lists as text, so that they can be compared and sorted."""
    out: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            out |= _flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = str(value) if isinstance(value, list) else value
    return out


def _read_choices(path: Path) -> dict[str, Any]:
    """Names of options by group, as Hydra stored them; empty where it did not."""
    try:
        found = _CHOICES.search(read_text(path))
        choices = parse_yaml(found[1]) if found else {}
    except DocumentError:
        return {}
    named = {_package(str(group)): name for group, name in choices.items() if isinstance(name, str | None)}
    return {group: name for group, name in named.items() if not group.startswith("hydra.")}


def _package(group: str) -> str:
    """Where the keys of a group stand: `trace/lengths@trace.prompt` gives `trace.prompt`."""
    return group.partition("@")[2] or group.replace("/", ".")
