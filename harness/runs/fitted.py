"""Calibration files: constants of a cost model that task=calibrate fitted, and the measured runs they were fitted to.

constants     name: value
cost          the cost model to which the constants belong
fitted_on     the measured run, hashes of its data and of its requests' lengths, part, number of requests and of steps;
              the simulated model, device, profile and number of ranks
kept          `fitted_on` of earlier fits whose constants were kept
objective     what was minimised, its value before and after, number of evaluations; widths of the constants, and which
              of them ended at a limit
date, command
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from engine.documents import DocumentError, read_yaml
from harness.errors import ConfigError
from harness.results.files import CALIBRATION, write_whole
from simulator.profile.checks import base_name
from simulator.quantities import RANGES

_DTYPES = {"half": "float16", "float": "float32"}  # names that vLLM also accepts
_FITTED_ON = {"measured": str, "data_sha256": str, "part": str, "num_requests": int}


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
        return any(data["data_sha256"] == data_sha256 and parts_overlap(data["part"], part) for data in self._fits)

    def was_fitted_on_another_run(self, requests_sha256: str, data_sha256: str, part: str) -> bool:
        """Whether a constant was fitted to another run of the same requests, and to requests in this part of them."""
        return any(
            data.get("requests_sha256") == requests_sha256
            and data["data_sha256"] != data_sha256
            and parts_overlap(data["part"], part)
            for data in self._fits
        )

    def other_systems(self, system: Mapping[str, Any]) -> list[str]:
        """One line for each fit that the file records with another system than `system`, as of `System.fitted_for`."""
        lines = []
        for data in self._fits:
            here = {
                name: value
                for name, value in system.items()
                if name in data and not same_setting(name, data[name], value)
            }
            if here:
                there = ", ".join(f"{name}={data[name]}" for name in here)
                what = ", ".join(f"{name}={value}" for name, value in here.items())
                lines.append(f"{self.path}: fitted with {there}; simulated here: {what}")
        return lines

    def check_device(self, device: str) -> None:
        """Raises ConfigError where a constant was fitted on another device, of whose machine it is a correction."""
        for data in self._fits:
            if "device" in data and not same_setting("device", data["device"], device):
                raise ConfigError(
                    f"cost.calibration={str(self.path)!r}: fitted on {data['device']}, simulated is {device}; fitted "
                    "constants correct one machine, and on another may be worse than none: fit there (task=calibrate), "
                    "leave them out, or take them with cost.other_device=true"
                )

    def check(self, kind: str, known: Iterable[str]) -> None:
        """Raises ConfigError unless it belongs to the cost model `kind`, which has constants of the names `known`, and
        its constants are in their ranges."""
        if self.cost != kind or set(self.constants) - set(known):
            raise ConfigError(
                f"cost.calibration={str(self.path)!r}: fitted for cost={self.cost} with {', '.join(self.constants)}; "
                f"cost={kind} has {', '.join(known)}"
            )
        for name, value in self.constants.items():
            if not RANGES[name].holds(value):
                raise ConfigError(
                    f"cost.calibration={str(self.path)!r}: constants.{name}={value:g}: must be {RANGES[name]}"
                )

    @property
    def _fits(self) -> tuple[Mapping[str, Any], ...]:
        return (self.fitted_on, *self.kept)


def read(path: Path) -> Calibration:
    """Read a calibration file.

    Raises:
        ConfigError: the file cannot be read, or is no calibration file.
    """
    try:
        document = read_yaml(path, numbers="any")  # widths may be infinite
    except DocumentError as error:
        raise ConfigError(f"cost.calibration={str(path)!r}: {error}") from None
    values = document if isinstance(document, dict) else {}
    constants, fitted_on, kept = (values.get(name) or {} for name in ("constants", "fitted_on", "kept"))
    kept = kept or []
    if (
        not isinstance(constants, dict)
        or not isinstance(kept, list)
        or not all(map(_is_fit, (fitted_on, *kept)))
        or not all(type(name) is str and type(value) in (int, float) for name, value in constants.items())
    ):
        raise ConfigError(
            f"cost.calibration={str(path)!r}: not a {CALIBRATION} of task=calibrate: needs constants (numbers) and "
            f"fitted_on ({', '.join(_FITTED_ON)})"
        )
    return Calibration(
        path, str(values.get("cost")), {name: float(value) for name, value in constants.items()}, fitted_on, tuple(kept)
    )


def _is_fit(data: Any) -> bool:
    """Whether `data` says to what constants were fitted."""
    return (
        isinstance(data, dict)
        and all(type(data.get(name)) is kind for name, kind in _FITTED_ON.items())
        and not any(isinstance(value, float) and not math.isfinite(value) for value in data.values())
    )


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Write a calibration file, whole or not at all."""
    text = OmegaConf.to_yaml(OmegaConf.create(dict(document)))
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def parts_overlap(one: str, other: str) -> bool:
    """Whether two parts of the same run share requests."""
    return one == other or "all" in (one, other)


def same_setting(name: str, one: Any, other: Any) -> bool:
    """Whether two values of a setting mean the same: models by name without owner or folder, in any case."""
    return bool(_plain(name, one) == _plain(name, other))


def _plain(name: str, value: Any) -> Any:
    if name == "model":
        return base_name(str(value))
    if name == "dtype":
        dtype = str(value).removeprefix("torch.")
        return _DTYPES.get(dtype, dtype)
    if name == "kv_cache_dtype":  # such as fp8_e4m3 or int8_per_token_head; any other value is the model's own
        return next((dtype for dtype in ("fp8", "int8", "int4") if str(value).startswith(dtype)), "auto")
    if name == "quantization":  # a log of vLLM calls both fp8
        return str(value).removesuffix("_block")
    return value
