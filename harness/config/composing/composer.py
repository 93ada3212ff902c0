"""Composing a configuration many times in one process: files are read once.

Hydra reads and merges some thirty files each time, which takes 0.2 s: twice for a run, to learn whether it is a sweep
and to run it, and twice for every job of a sweep, when it checks the sweep and when it runs the job. Which files, and
how, depends only on the overrides that choose options of groups, such as scheduler=vllm. A `Composer` keeps what Hydra
makes of the default options, for later processes too (`merged_files.py`), puts in those that are chosen
(`option_files.py`), and sets the other keys in a copy. What is more than an option of its own group, such as
experiment=vllm, Hydra merges; that is kept, too.
"""

import os
import pickle
import re
import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.plugins.config_source import ConfigSource
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from harness.config.composing import CONF
from harness.config.composing import registration as registration  # makes the option sets known to Hydra
from harness.config.composing.merged_files import Key, MergedFiles
from harness.config.composing.option_files import put, read_option, sets_its_group


class _Kept:
    """What was read from the files of some folders."""

    def __init__(self) -> None:
        self.merged: dict[Key, bytes] = {}
        self.options: dict[tuple[str, str], DictConfig | None] = {}
        self.sets_its_group: dict[tuple[str, str], bool] = {}


_KEPT: defaultdict[str, _Kept] = defaultdict(_Kept)  # by folders


class Composer(ConfigLoader):
    """Composes as the loader of Hydra's that it is given. What is merged from the same folders serves all composers of
    the process: a file that changes after it was read is not read again."""

    def __init__(self, loader: ConfigLoader) -> None:
        self._loader = loader
        self._kept = _KEPT[str(loader.get_search_path())]
        self._stored = MergedFiles(loader.get_sources())
        self._is_group: dict[str, bool] = {}

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        """The configuration of a command line, with Hydra's own keys."""
        parsed = OverridesParser.create().parse_overrides(overrides)
        if not validate_sweep_overrides and not any(each.is_sweep_override() for each in parsed):
            run_mode, validate_sweep_overrides = RunMode.RUN, True  # Hydra asks for the mode, and next for the run
        how = (run_mode, from_shell, validate_sweep_overrides)
        values = [each for each in parsed if self._is_value(each)]
        if any(self._is_edit(each) for each in parsed):
            values = []  # they may depend on the values beside them
        cfg = self._chosen(config_name, [each for each in parsed if each not in values], how)
        try:
            for each in values:
                OmegaConf.update(cfg, each.key_or_group, each.value(), merge=True)
            _describe(cfg, parsed)
        except (OmegaConfBaseException, KeyError):  # Hydra says what is wrong
            return self._loader.load_configuration(config_name, overrides, *how)
        return cfg

    def _chosen(self, config_name: str | None, choices: Sequence[Override], how: tuple[Any, ...]) -> DictConfig:
        """What the files make with these choices."""
        options = self._options(choices)
        lines = [str(each.input_line) for each in choices if each.key_or_group not in options]
        key = (config_name, *how, *lines)
        if key not in self._kept.merged:
            if (cfg := self._stored.find(key)) is None:
                cfg = self._loader.load_configuration(config_name, lines, *how)
                self._stored.keep(key, cfg)
            self._kept.merged[key] = pickle.dumps(cfg)
        chosen: DictConfig = pickle.loads(self._kept.merged[key])
        put(chosen, options)
        return chosen

    def _options(self, choices: Sequence[Override]) -> dict[str, tuple[str, DictConfig]]:
        """By group the options that are read from their own files, the last one of a group that is given twice; none
        where a choice sets more than a group."""
        if not all(map(self._is_option, choices)):
            return {}
        named = {each.key_or_group: str(each.value()) for each in choices}
        found = {group: (name, self._read(group, name)) for group, name in named.items()}
        return {group: (name, content) for group, (name, content) in found.items() if content is not None}

    def _read(self, group: str, option: str) -> DictConfig | None:
        if (group, option) not in self._kept.options:
            self._kept.options[group, option] = read_option(self._loader.get_sources(), group, option)
        return self._kept.options[group, option]

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        """The configuration of a job of a sweep, with what was resolved for the sweep, such as its time."""
        given = OmegaConf.to_container(master_config.hydra.overrides.hydra)  # references are resolved for each job
        assert isinstance(given, list)
        overrides = [*map(str, given), *sweep_overrides]
        cfg = self.load_configuration(master_config.hydra.job.config_name, overrides, RunMode.RUN)
        OmegaConf.copy_cache(from_config=master_config, to_config=cfg)
        return cfg

    def _is_value(self, override: Override) -> bool:
        """Whether an override sets a key that is there, and has no say in which files are merged."""
        if override.type != OverrideType.CHANGE or override.package is not None or override.is_sweep_override():
            return False
        return isinstance(override.value(), dict) or not self._is_of_group(override)

    def _is_option(self, override: Override) -> bool:
        """Whether an override chooses a file that sets its own group and nothing else."""
        name = override.key_or_group
        is_plain = override.type == OverrideType.CHANGE and override.package is None and "/" not in name
        if not is_plain or override.is_sweep_override() or not self._is_of_group(override):
            return False
        option, known = (name, str(override.value())), self._kept.sets_its_group
        if option not in known:
            known[option] = sets_its_group(self._loader.get_sources(), *option)
        return known[option]

    def _is_edit(self, override: Override) -> bool:
        """Whether an override adds or deletes a key, or chooses the folders of the files."""
        edits = override.type != OverrideType.CHANGE and not self._is_of_group(override)
        return edits or override.key_or_group == "hydra.searchpath"

    def _is_of_group(self, override: Override) -> bool:
        name = override.key_or_group
        if name not in self._is_group:
            self._is_group[name] = any(source.is_group(name) for source in self._loader.get_sources())
        return self._is_group[name]

    def get_search_path(self) -> ConfigSearchPath:
        return self._loader.get_search_path()

    def get_sources(self) -> list[ConfigSource]:
        return self._loader.get_sources()

    def list_groups(self, parent_name: str) -> list[str]:
        return self._loader.list_groups(parent_name)

    def get_group_options(
        self,
        group_name: str,
        results_filter: ObjectType | None = ObjectType.CONFIG,
        config_name: str | None = None,
        overrides: list[str] | None = None,
    ) -> list[str]:
        return self._loader.get_group_options(group_name, results_filter, config_name, overrides)

    def compute_defaults_list(self, config_name: str | None, overrides: list[str], run_mode: RunMode) -> object:
        return self._loader.compute_defaults_list(config_name, overrides, run_mode)


def _describe(cfg: DictConfig, overrides: Sequence[Override]) -> None:
    """Sets the keys under `hydra` that Hydra derives from all overrides and from where the process is."""
    job = cfg.hydra.job
    own = [override for override in overrides if not override.is_hydra_override()]
    cfg.hydra.overrides.hydra = [override.input_line for override in overrides if override.is_hydra_override()]
    cfg.hydra.overrides.task = [override.input_line for override in own]
    with open_dict(cfg.hydra):
        job.env_set.update({name: os.environ[name] for name in job.env_copy})
    cfg.hydra.runtime.cwd = os.getcwd()
    naming = job.config.override_dirname
    lines = sorted(str(each.input_line) for each in own if each.key_or_group not in naming.exclude_keys)
    job.override_dirname = re.sub("=", lambda _: naming.kv_sep, naming.item_sep.join(lines))


_ONE_AT_A_TIME = threading.Lock()  # Hydra keeps what it composes with in one place for all threads


class _ComposingOnce(GlobalHydra):
    """What Hydra keeps for a process; it composes with a `Composer`."""

    def initialize(self, hydra: Any) -> None:
        super().initialize(hydra)
        hydra.config_loader = Composer(hydra.config_loader)


def compose_once() -> None:
    """Lets Hydra compose with a `Composer` in this process, from when it is next initialized."""
    instance = _ComposingOnce()
    instance.hydra = GlobalHydra.instance().hydra
    GlobalHydra.set_instance(instance)


def compose(overrides: Sequence[str]) -> DictConfig:
    """What Hydra makes of overrides, with its own keys. Hydra may be in use elsewhere in the process, and stays so.

    Raises:
        HydraException, OmegaConfBaseException: an override or a file cannot be used.
    """
    instance = GlobalHydra.instance()
    with _ONE_AT_A_TIME:
        before = instance.hydra
        instance.clear()
        try:
            with initialize_config_dir(version_base=None, config_dir=str(CONF), job_name="twinserve"):
                loader = GlobalHydra.instance().config_loader()
                composer = loader if isinstance(loader, Composer) else Composer(loader)
                return composer.load_configuration("config", list(overrides), RunMode.RUN, from_shell=False)
        finally:
            GlobalHydra.instance().hydra = before  # not that of above: Hydra restores another one


def drop_hydra(cfg: DictConfig) -> DictConfig:
    """The same configuration, from which Hydra's own keys are taken: a copy of all others is slow to make."""
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg


def plain_forms(overrides: Sequence[str], loader: ConfigLoader | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """What overrides make: resolved but for `hydra`, with `???` where values are missing, and as it is written; both as
    plain values.

    Args:
        loader: composes them; by default Hydra's, which runs a job.

    Raises:
        HydraException, OmegaConfBaseException: an override cannot be used.
    """
    loader = loader or GlobalHydra.instance().config_loader()
    cfg = loader.load_configuration("config", list(overrides), RunMode.RUN)
    written = OmegaConf.to_container(cfg)
    resolved = OmegaConf.to_container(drop_hydra(cfg), resolve=True)
    assert isinstance(resolved, dict) and isinstance(written, dict)
    return {str(key): value for key, value in resolved.items()}, {str(key): value for key, value in written.items()}
