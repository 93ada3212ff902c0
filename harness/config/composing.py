"""Composing a configuration many times in one process: the files are merged once for each choice of options.

Hydra reads and merges some thirty files for every job of a sweep, twice: when it checks the sweep and when it runs the
job. Which files, and how, depends only on the overrides that choose options of groups, such as scheduler=vllm. A
`Composer` keeps what Hydra makes of these, and applies the other overrides, such as block_size=32, to a copy of it.
"""

import os
import pickle
from collections.abc import Sequence

import hydra._internal.hydra
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException


class Composer(ConfigLoaderImpl):
    """Composes as Hydra does. A file that changes after it has been read is not read again."""

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        super().__init__(config_search_path)
        self._merged: dict[tuple[object, ...], bytes] = {}

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
        values = [each for each in parsed if self._is_value(each)]
        choices = [line for each in parsed if not self._is_value(each) and (line := each.input_line) is not None]
        key = (config_name, run_mode, from_shell, validate_sweep_overrides, *choices)
        if key not in self._merged:
            merged = super().load_configuration(config_name, choices, run_mode, from_shell, validate_sweep_overrides)
            self._merged[key] = pickle.dumps(merged)
        cfg: DictConfig = pickle.loads(self._merged[key])
        try:
            self._apply_overrides_to_config(values, cfg)
            _describe(cfg, parsed)
        except OmegaConfBaseException as error:
            raise ConfigCompositionException() from error
        return cfg

    def _is_value(self, override: Override) -> bool:
        """Whether an override has no say in which files are merged."""
        if override.is_sweep_override() or override.get_key_element() == "hydra.searchpath":
            return False
        return isinstance(override.value(), dict) or not self.repository.group_exists(override.key_or_group)


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
    job.override_dirname = get_overrides_dirname(own, naming.exclude_keys, naming.item_sep, naming.kv_sep)


def compose_once() -> None:
    """Lets Hydra compose with a `Composer` from now on."""
    hydra._internal.hydra.ConfigLoaderImpl = Composer  # type: ignore[misc]
