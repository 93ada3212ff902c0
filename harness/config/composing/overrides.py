"""What is wrong with overrides such as block_size=16, in one line."""

import traceback
from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from harness.config.explaining import explain_override
from harness.config.run import RunConfig
from harness.config.schema.traffic.reader import models_in, nearest
from harness.errors import ConfigError

_REFUSALS = (HydraException, OmegaConfBaseException)
_OTHER_MODEL = (
    "none that comes with the project (--help model); any other is read: model=<its folder>, or model=hf://{}"
)
_COMPOSING = ("hydra", "omegaconf", "hydra_plugins", "submitit", "ray")


def check_single(overrides: Sequence[str]) -> None:
    """Raises ConfigError for an override with several values, where one run is asked for."""
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        if override.is_sweep_override():
            raise ConfigError(
                f"{override.input_line}: several values make a sweep; a list is {override.key_or_group}=[...], and "
                "text with commas needs quotes of its own"
            )


def is_refusal(error: Exception) -> bool:
    """Whether an error is one of composing, which the user can cause; Hydra and its launchers also use other types
    than their own for wrong flags and groups."""
    if isinstance(error, _REFUSALS):
        return True
    frames = list(traceback.walk_tb(error.__traceback__))
    return bool(frames) and frames[-1][0].f_globals["__name__"].partition(".")[0] in _COMPOSING


def explain_refusal(error: Exception, overrides: Sequence[str]) -> str:
    """One line for an error of composing `overrides`, with the nearest valid name where a name is wrong."""
    if isinstance(error, OverrideParseException):
        quotes = "; text with = , ~ or spaces needs quotes of its own, such as results=['a=1']"
        reason = error.message.strip().splitlines()[0]
        return f"{error.override!r}: not of the form key=value ({reason}){quotes if '=' in error.override else ''}"
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, option = error.missing_cfg_file.rpartition("/")
        if group.startswith("model/"):
            name = error.missing_cfg_file.removeprefix("model/")
            return f"model={name}: {_OTHER_MODEL.format(name)}{nearest(option.lower(), error.options)}"
        return f"{group}={option!r}: choose one of {', '.join(error.options)}{nearest(option, error.options)}"
    text = " ".join((str(error) or str(error.__cause__)).split())
    if isinstance(cause := error.__cause__, ConfigAttributeError | ConfigKeyError) and cause.full_key:
        return explain_override(cause.full_key) or text
    if not isinstance(error, (*_REFUSALS, OSError)) and (override := _odd_choice(overrides)):
        return f"{override}: must be the name of an option of the group"
    return text


def _odd_choice(overrides: Sequence[str]) -> str | None:
    """The first override that gives a group something else than names of options."""
    groups = {name for name, field in RunConfig.model_fields.items() if models_in(field.annotation)}
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        value: Any = override.value()
        names = value if isinstance(value, list) else [value]
        is_group = override.key_or_group in groups | {"experiment", "hydra"} or "/" in override.key_or_group
        if is_group and not override.is_sweep_override() and not all(isinstance(name, str) for name in names):
            return override.input_line
    return None
