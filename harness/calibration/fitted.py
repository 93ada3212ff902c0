"""Constants of a cost model that were fitted to a measured run, in a file that says to which run and which part.

constants     name: value
cost          the cost model they belong to
fitted_on     measured run, hashes of its data and of its requests' lengths, part, number of requests and of steps;
              model, device, profile and ranks that were simulated
kept          the same of earlier fits, where constants of theirs were kept
objective     what was minimised, before and after, and in how many evaluations; widths of the constants
date, command
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from harness.errors import ConfigError
from harness.results.tables import CALIBRATION, write_whole
from harness.runs.shapes import device_rates, model_shape
from harness.validation.metrics import parts_overlap
from harness.validation.settings import same_setting
from simulator.costs import linear
from simulator.costs.constants import Constant, profiled_constants

if TYPE_CHECKING:
    from harness.config import RunConfig

_FITTED_ON = ("measured", "data_sha256", "part", "num_requests")


@dataclass(frozen=True)
class Calibration:
    """A calibration file: the constants, the kind of cost model they belong to, and what they were fitted on."""

    path: Path
    cost: str
    constants: Mapping[str, float]
    fitted_on: Mapping[str, Any]
    kept: tuple[Mapping[str, Any], ...] = ()

    def was_fitted_on(self, data_sha256: str, part: str) -> bool:
        """Whether any of its constants was fitted on requests of this part of the data."""
        return any(data["data_sha256"] == data_sha256 and parts_overlap(data["part"], part) for data in self._fits)

    def was_fitted_on_another_run(self, requests_sha256: str, data_sha256: str, part: str) -> bool:
        """Whether any was fitted on other data of these requests and on this part of them, as far as the file tells."""
        return any(
            data.get("requests_sha256") == requests_sha256
            and data["data_sha256"] != data_sha256
            and parts_overlap(data["part"], part)
            for data in self._fits
        )

    def other_systems(self, config: RunConfig) -> list[str]:
        """One line for each fit of another model, device, profile or number of ranks, as far as the file tells."""
        lines = []
        for data in self._fits:
            here = {
                name: value
                for name, value in system_of(config).items()
                if name in data and not same_setting(name, data[name], value)
            }
            if here:
                there = ", ".join(f"{name}={data[name]}" for name in here)
                what = ", ".join(f"{name}={value}" for name, value in here.items())
                lines.append(f"{self.path}: fitted with {there}; simulated here: {what}")
        return lines

    @property
    def _fits(self) -> tuple[Mapping[str, Any], ...]:
        return (self.fitted_on, *self.kept)


def system_of(config: RunConfig) -> dict[str, Any]:
    """What the constants of a cost model hold for."""
    return {
        "model": config.model.name,
        "device": config.device.name,
        "profile": getattr(config.cost, "profile", None),
        "statistic": getattr(config.cost, "statistic", None),
        "tensor_parallel_size": config.tensor_parallel_size,
    }


def constants_of(config: RunConfig) -> dict[str, Constant]:
    """The constants of the configured cost model by name, with the defaults that this configuration has.

    Those of `roofline` are the keys of the device that its datasheet does not state. Without tensor parallelism, what
    concerns communication has no effect and is left out.
    """
    device, ranks = device_rates(config), config.tensor_parallel_size
    if config.cost.kind == "profiled":
        return profiled_constants(device, ranks, async_scheduling=config.scheduler.async_scheduling)
    if config.cost.kind == "linear":
        return linear.constants(model_shape(config), device, ranks)
    constants = {
        "memory_efficiency": Constant(device.memory_efficiency, 0.05, 1.0),
        "flops_efficiency": Constant(device.flops_efficiency, 0.05, 1.0),
        "step_overhead_s": Constant(device.step_overhead_s, 0.0, 0.02),
    }
    if ranks > 1:
        constants["link_latency_s"] = Constant(device.link_latency_s, 0.0, 0.002)
    return constants


def read(path: Path) -> Calibration:
    """Read a file of `write`.

    Raises:
        ConfigError: it cannot be read, or is no calibration file.
    """
    try:
        document = OmegaConf.load(path)
    except (OSError, YAMLError, UnicodeDecodeError, OmegaConfBaseException) as error:
        reason = getattr(error, "strerror", None) or "not YAML"
        raise ConfigError(f"cost.calibration={str(path)!r}: cannot be read: {reason}") from None
    values = OmegaConf.to_container(document, resolve=False) if isinstance(document, DictConfig) else {}
    assert isinstance(values, dict)
    constants, fitted_on, kept = (values.get(name) or {} for name in ("constants", "fitted_on", "kept"))
    if (
        not isinstance(constants, dict)
        or not all(isinstance(data, dict) and set(_FITTED_ON) <= set(data) for data in (fitted_on, *kept))
        or not all(type(value) in (int, float) for value in constants.values())
    ):
        raise ConfigError(
            f"cost.calibration={str(path)!r}: not a {CALIBRATION} of task=calibrate: needs constants (numbers) and "
            f"fitted_on ({', '.join(_FITTED_ON)})"
        )
    return Calibration(
        path, str(values.get("cost")), {str(k): float(v) for k, v in constants.items()}, fitted_on, tuple(kept)
    )


def configured(config: RunConfig) -> Calibration | None:
    """The calibration file that `cost.calibration` names, None without one.

    Raises:
        ConfigError: it cannot be read, or belongs to another cost model.
    """
    name = getattr(config.cost, "calibration", None)
    if name is None:
        return None
    calibration = read(Path(name))
    known = constants_of(config)
    if calibration.cost != config.cost.kind or set(calibration.constants) - set(known):
        raise ConfigError(
            f"cost.calibration={name!r}: fitted for cost={calibration.cost} with {', '.join(calibration.constants)}; "
            f"cost={config.cost.kind} has {', '.join(known)}"
        )
    return calibration


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Write a calibration file, whole or not at all."""
    text = OmegaConf.to_yaml(OmegaConf.create(dict(document)))
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
