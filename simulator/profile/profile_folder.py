"""A profile as a folder `<device>/<model>/tp<N>`: `meta.yaml` and a CSV file per table."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from engine.documents import errors_as, read_yaml, yaml_text
from simulator.profile.csv_table import read_csv
from simulator.profile.meta import ProfileMeta
from simulator.profile.profile import KEYS, META, Profile, ProfileError

FORMAT_VERSION = 1


def load_profile(folder: Path) -> Profile:
    """Read a profile folder.

    Raises:
        ProfileError: it is not there, cannot be read, or breaks the format.
    """
    if not folder.is_dir():
        raise ProfileError(f"no folder {str(folder)!r}")
    meta = load_meta(folder)
    tables = {}
    for name in KEYS:
        path = folder / f"{name}.csv"
        if path.exists():
            tables[name] = read_csv(path)
    return Profile(meta, tables)


def rank_folder(folder: Path, tensor_parallel_size: int) -> Path:
    """The folder within `folder` that was measured on `tensor_parallel_size` ranks.

    Raises:
        ProfileError: it was not measured.
    """
    path = folder / f"tp{tensor_parallel_size}"
    if not path.is_dir():
        there = ", ".join(sorted(entry.name for entry in folder.glob("tp*") if entry.is_dir())) or "none"
        raise ProfileError(f"{str(folder)!r}: no tp{tensor_parallel_size} (measured: {there})")
    return path


def save_profile(profile: Profile, folder: Path) -> None:
    """Write a profile folder; times are rounded to a nanosecond."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in KEYS:
        path = folder / f"{name}.csv"
        if name in profile.tables:
            profile.tables[name].round(3).to_csv(path, index=False, lineterminator="\n")
        else:
            path.unlink(missing_ok=True)
    text = yaml_text(meta_values(profile.meta))
    (folder / META).write_text(text, encoding="utf-8")


def meta_values(meta: ProfileMeta) -> dict[str, Any]:
    """The keys of `meta.yaml`, plain data."""
    values = {"format_version": FORMAT_VERSION, "units": {"time": "us"}, **dataclasses.asdict(meta)}
    return values | {name: list(sizes) for name, sizes in values.items() if isinstance(sizes, tuple)}


def read_meta(folder: Path, hint: str = "") -> dict[str, Any]:
    """The keys of a folder's `meta.yaml`; `hint` ends the message where there is none.

    Raises:
        ProfileError: it is not there, or no YAML file with keys.
    """
    path = folder / META
    if not path.exists():
        there = ", ".join(sorted(entry.name for entry in folder.glob("*"))) or "nothing"
        raise ProfileError(f"no {META} in {str(folder)!r} (there: {there}){hint}")
    with errors_as(ProfileError, f"{str(path)!r}"):
        values = read_yaml(path)
    if not isinstance(values, dict):
        raise ProfileError(f"{str(path)!r} holds no keys")
    return values


def load_meta(folder: Path) -> ProfileMeta:
    return meta_of(read_meta(folder))


def meta_of(values: dict[str, Any]) -> ProfileMeta:
    """The description in the keys of `meta.yaml`; raises ProfileError if they break the format."""
    values = dict(values)
    version = values.pop("format_version", None)
    if version != FORMAT_VERSION:
        raise ProfileError(f"{META}: format_version {version}, this version reads {FORMAT_VERSION}")
    units = values.pop("units", None)
    if units != {"time": "us"}:
        raise ProfileError(f"{META}: units {units}; times must be in microseconds: units: {{time: us}}")
    fields = {entry.name: entry for entry in dataclasses.fields(ProfileMeta)}
    needed = {name for name, entry in fields.items() if _has_no_default(entry)}
    if unknown := sorted(str(name) for name in values if name not in fields):
        raise ProfileError(f"{META}: unknown key {', '.join(unknown)}")
    if missing := sorted(needed - set(values)):
        raise ProfileError(f"{META}: no {', '.join(missing)}")
    try:
        return TypeAdapter(ProfileMeta).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise ProfileError(f"{META}: {name}: {first['msg']}, not {first['input']!r}") from None


def _has_no_default(entry: dataclasses.Field[Any]) -> bool:
    return entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
