"""Options of the group `device`, by the names that people have for them."""

from __future__ import annotations

from engine.documents import errors_as, read_yaml
from harness.config.composing import CONF
from harness.config.device_names import device_option
from harness.config.schema.system import DeviceConfig
from harness.config.schema.traffic.reader import nearest
from harness.errors import ConfigError


def device_named(name: str) -> DeviceConfig:
    """An option of the group `device`; raises ConfigError where there is none of that name."""
    names = sorted(path.stem for path in (CONF / "device").glob("*.yaml"))
    if (option := device_option(name, names)) is None:
        raise ConfigError(f"device={name}: no option of device{nearest(name, names)}")
    with errors_as(ConfigError, f"device={name}"):
        return DeviceConfig.model_validate(read_yaml(CONF / "device" / f"{option}.yaml"))
