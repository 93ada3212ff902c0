"""Configurations with several options, put together from others that have them.

A file of an option sets its own group only, unless it names a package. So model=tiny scheduler=mixed is any
configuration with scheduler=mixed whose group `model` is that of any other one with model=tiny. A sweep of ten models
and ten schedulers is merged from the files ten or twenty times, not a hundred.
"""

import pickle
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, open_dict

Options = Mapping[str, str]  # by group


class Combiner:
    """Configurations that Hydra merged with the same other choices, by their options."""

    def __init__(self) -> None:
        self._merged: list[tuple[Options, bytes]] = []

    def add(self, options: Options, cfg: DictConfig) -> None:
        self._merged.append((options, pickle.dumps(cfg)))

    def combined(self, options: Options) -> DictConfig | None:
        """What Hydra would merge with these options; None if one of them, or the default of a group, is not known."""
        groups = {group for known, _ in self._merged for group in known} | set(options)

        def agree(known: Options) -> set[str]:
            return {group for group in groups if known.get(group) == options.get(group)}

        if not self._merged:
            return None
        base, content = max(self._merged, key=lambda each: len(agree(each[0])))
        missing = groups - agree(base)
        cfg: DictConfig = pickle.loads(content)
        chosen = _segments(cfg.hydra.runtime.choices)
        for known, content in self._merged:
            if found := missing & agree(known):
                other = pickle.loads(content)
                others = _segments(other.hydra.runtime.choices)
                missing -= found
                with open_dict(cfg):
                    for group in found:
                        cfg[group] = other[group]
                        chosen[group] = others[group]
        if missing:
            return None
        cfg.hydra.runtime.choices = {name: option for each in chosen.values() for name, option in each.items()}
        return cfg


def _segments(choices: Mapping[Any, Any]) -> dict[str, dict[str, Any]]:
    """By group its option, and behind it those of the groups that its file names, which have a package."""
    found: dict[str, dict[str, Any]] = {}
    last: dict[str, Any] = {}
    for name, option in choices.items():
        if "@" not in name:
            last = found[name] = {}
        last[name] = option
    return found
