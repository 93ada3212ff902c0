"""Constants of a cost model that were fitted to measured runs, and which runs these were."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.profile.checks import base_name

_DISJOINT = ({"first_half", "second_half"}, {"fitted", "held_out"})  # parts of a run
_DTYPES = {"half": "float16", "float": "float32"}  # names that vLLM also accepts


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
        return any(data["data_sha256"] == data_sha256 and parts_overlap(data["part"], part) for data in self.fits)

    def was_fitted_on_another_run(self, requests_sha256: str, data_sha256: str, part: str) -> bool:
        """Whether a constant was fitted to another run of the same requests, and to requests in this part of them."""
        return any(
            data.get("requests_sha256") == requests_sha256
            and data["data_sha256"] != data_sha256
            and parts_overlap(data["part"], part)
            for data in self.fits
        )

    def other_systems(self, system: Mapping[str, Any]) -> list[str]:
        """One line for each fit that the file records with another system than `system`, as of `System.fitted_for`."""
        lines = []
        for data in self.fits:
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

    @property
    def fits(self) -> tuple[Mapping[str, Any], ...]:
        """The runs to which its constants were fitted."""
        return (self.fitted_on, *self.kept)


def parts_overlap(one: str, other: str) -> bool:
    """Whether two parts of the same run share requests."""
    return {one, other} not in _DISJOINT


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
