"""Calibration files: constants of a cost model that task=calibrate fitted, and the measured runs they were fitted to.

constants     name: value
cost          the cost model to which the constants belong
fitted_on     the measured run, hashes of its data and of its requests' lengths, part, number of requests and of steps;
              the simulated model, device, profile and number of ranks
kept          `fitted_on` of earlier fits whose constants were kept
objective     what was minimised, its value before and after, number of evaluations; widths of the constants
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
from harness.runs.same_setting import same_setting
from harness.runs.shapes import device_rates, model_shape
from simulator.costs import linear
from simulator.costs.constants import Constant, profiled_constants

if TYPE_CHECKING:
    from harness.config import RunConfig

_FITTED_ON = ("measured", "data_sha256", "part", "num_requests")


@dataclass(frozen=True)
class Calibration:
    """The content of a calibration file.

    Attributes:
        path: the file.
        cost: kind of the cost model to which the constants belong.
        constants: name to value.
        fitted_on: the run to which they were fitted.
        kept: the same for earlier fits whose constants were kept.
    """

    path: Path
    cost: str
    constants: Mapping[str, float]
    fitted_on: Mapping[str, Any]
    kept: tuple[Mapping[str, Any], ...] = ()

    def was_fitted_on(self, data_sha256: str, part: str) -> bool:
        """Whether a constant was fitted to requests in this part of the data."""
        return any(data["data_sha256"] == data_sha256 and _overlap(data["part"], part) for data in self._fits)

    def was_fitted_on_another_run(self, requests_sha256: str, data_sha256: str, part: str) -> bool:
        """Whether a constant was fitted to another run of the same requests, and to requests in this part of them."""
        return any(
            data.get("requests_sha256") == requests_sha256
            and data["data_sha256"] != data_sha256
            and _overlap(data["part"], part)
            for data in self._fits
        )

    def other_systems(self, config: RunConfig) -> list[str]:
        """One line for each fit that the file records with another model, device, profile or number of ranks."""
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
    """The parts of a configuration for which fitted constants hold."""
    return {
        "model": config.model.name,
        "device": config.device.name,
        "profile": getattr(config.cost, "profile", None),
        "statistic": getattr(config.cost, "statistic", None),
        "tensor_parallel_size": config.tensor_parallel_size,
    }


def constants_of(config: RunConfig) -> dict[str, Constant]:
    """The constants of the configured cost model by name, with their defaults for this configuration.

    The constants of `roofline` are those keys of the device that no datasheet states. Without tensor parallelism the
    constants of communication have no effect and are left out.
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
    """Read a calibration file.

    Raises:
        ConfigError: the file cannot be read, or is no calibration file.
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
        ConfigError: the file cannot be read, or belongs to another cost model.
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


def _overlap(one: str, other: str) -> bool:
    """Whether two parts of the same run share requests."""
    return one == other or "all" in (one, other)


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Write a calibration file, whole or not at all."""
    text = OmegaConf.to_yaml(OmegaConf.create(dict(document)))
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
