"""Turns a composed Hydra configuration into a checked RunConfig, or into one line that says what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from engine.documents import errors_as, read_yaml, yaml_text
from harness.config.composing.pool_defaults import fill_pools
from harness.config.explaining import explain
from harness.config.huggingface.configs import resolve_model
from harness.config.pools import pools_of
from harness.config.run import RunConfig
from harness.config.targets import import_targets
from harness.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

_TASK_GROUPS = ("profile", "validation", "calibration", "plot", "report", "capacity", "search", "sinks")


def parse(cfg: DictConfig) -> RunConfig:
    """Checks a composed configuration, and imports the code of the user's own that it names.

    Raises:
        ConfigError: one line naming the first wrong key, its value and what is allowed, and how many more are wrong.
    """
    from omegaconf import OmegaConf  # imported late, as stored configurations and --help do without it
    from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

    try:
        values = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        raise ConfigError(f"{error.full_key}: missing; give it as {error.full_key}=...") from None
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key}: {str(error).splitlines()[0]}") from None
    if isinstance(values, dict):
        fill_pools({str(key): value for key, value in values.items()}, cfg)
    return of_values(values)


def of_values(values: Any) -> RunConfig:
    """Checks a composed configuration that is resolved; as `parse`."""
    if isinstance(values, dict) and isinstance(model := values.get("model"), dict) and "config" in model:
        values = {**values, "model": resolve_model(model)}
    import_targets({str(key): value for key, value in values.items()} if isinstance(values, dict) else {})
    return validated(values)


def to_yaml(config: RunConfig) -> str:
    """The resolved configuration as YAML, for `load` to read.

    Groups that belong to one task, and are not used here, are left out: a later default must not look like a setting.
    """
    unused = {name for name in _TASK_GROUPS if getattr(config, name).changed() is None}
    return yaml_text(config.model_dump(mode="json", exclude=unused))


def load(path: Path) -> RunConfig:
    """Reads a file of `to_yaml`. Text such as `${oc.env:HOME}` stays text: the file may be of another person.

    Raises:
        ConfigError: the file cannot be read, or does not hold a configuration of this version.
    """
    with errors_as(ConfigError, path):
        values = read_yaml(path)
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: holds no configuration")
    try:
        return validated(values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def validated(values: Any) -> RunConfig:
    """Checks the values of a whole configuration; raises ConfigError as `parse` does."""
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain(error)) from None
    pools_of(config)
    return config
