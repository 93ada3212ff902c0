"""Command lines whose configuration is known from an earlier run: such a run begins without Hydra.

Importing Hydra, composing and what Hydra does around a run take 0.2 s, a fifth of a short run. An entry in the cache
folder holds, as plain values, what Hydra composed of the overrides that choose options or that others depend on. It is
found by these overrides, by what all files that compose were at that time (name, size, time of the last change) and by
the versions of Python and Hydra. Overrides of `_FREE` keys, on which no other value depends, are put in as they are:

    twinserve scheduler=mixed trace.num_requests=500 seed=3       chosen: scheduler=mixed    free: the two others

What is not of this simple form is composed by Hydra: flags, sweeps, lists, text in quotes, keys that do not exist.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from engine.documents import yaml_text
from harness.config.composing.cache_folder import cache_folder, read_own, stamp, stamps, write_own

_FREE = ("trace", "arrival", "metrics", "seed", "plots", "progress", "verbose")
_FOLDER = "hydra.run.dir"
_OVERRIDE = re.compile(r"([A-Za-z][\w./]*)=([^$]*)")
_WHOLE, _DECIMAL = re.compile(r"-?(0|[1-9]\d*)"), re.compile(r"-?(0|[1-9]\d*)\.\d+")
_TEXT = re.compile(r"(?!(true|false|null|nan|inf)$)([a-z_]|\.{0,2}/)[\w/.-]*", re.IGNORECASE)
_WORDS = {"true": True, "false": False, "null": None}
_NOW = re.compile(r"\$\{now:([^${}]*)\}")
_DERIVED = re.compile(r"\$\{(?:vllm_version|sglang):[\w,.]*\}")  # by `registration.py`, of keys that are not free
_REFERENCE = re.compile(r"\$\{(?!\.)([\w.]+)\}")
_MISSING = "???"
_FORMAT = 1
_PACKAGE = Path(__file__).resolve().parents[3]
_CODE = (
    "harness/config",
    "harness/conf",
    "simulator/versions/vllm_versions.py",
    "simulator/versions/sglang_defaults.py",
)
_COMPOSERS = ("hydra", "omegaconf")


@dataclass(frozen=True)
class KnownCommand:
    """What Hydra would have made of a command line.

    Attributes:
        values: the configuration, resolved.
        folder: where the run goes, as given.
        stored: by name the content of the files that Hydra leaves in `.hydra`.
    """

    values: dict[str, Any]
    folder: str
    stored: Mapping[str, Any]

    def store(self, folder: Path) -> None:
        """Leaves in `folder` the files that Hydra leaves there."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.stored.items():
            (folder / f"{name}.yaml").write_text(yaml_text(content), encoding="utf-8")


@dataclass(frozen=True)
class _Line:
    """The overrides of a command line: those that choose, values by key of the free ones, and the run's folder."""

    chosen: tuple[str, ...]
    free: Mapping[str, Any]
    folder: str | None


def find(arguments: Sequence[str]) -> KnownCommand | None:
    """The configuration of a run with these arguments; None if it is not known."""
    line = _read(arguments)
    if line is None or (content := read_own(_path(line.chosen))) is None:
        return None
    with suppress(ValueError, KeyError, TypeError):  # a damaged file is written anew
        entry = json.loads(content)
        values, job = entry["values"], entry["job"]
        if not all(_put(values, key, value) and _put(job, key, value) for key, value in line.free.items()):
            return None
        folder = _NOW.sub(lambda found: datetime.now().strftime(found[1]), line.folder or entry["folder"])
        if not folder or "$" in folder or _has_missing(values):
            return None
        return KnownCommand(values, folder, _stored(entry, job, arguments, line, folder))
    return None


def keep(arguments: Sequence[str], compose: Any) -> None:
    """Keeps what Hydra makes of the command line's choices, unless more than they decides it.

    Args:
        compose: of overrides the configuration with Hydra's own keys, resolved and as it is written; both plain.
    """
    line = _read(arguments)
    if line is None:
        return
    resolved, written = compose(line.chosen)
    hydra = written.pop("hydra")
    job, values = written, {key: value for key, value in resolved.items() if key != "hydra"}
    is_usual = [*hydra["callbacks"]] == ["sweep_report"] and hydra["output_subdir"] == ".hydra"
    does_more = hydra["searchpath"] or hydra["job"]["env_copy"] or hydra["job"]["chdir"] or hydra["job"]["env_set"]
    does_more = does_more or hydra["job_logging"]["root"] or hydra["verbose"]
    if not is_usual or does_more or _has_own_devices(values) or not all(map(_is_plain, _texts(job))):
        return
    entry = {"values": values, "job": job, "hydra": hydra, "folder": hydra["run"]["dir"]}
    with suppress(OSError, TypeError, ValueError):  # without a folder to write to, it is composed again next time
        text = json.dumps(entry, allow_nan=False)
        if json.loads(text) == entry:
            write_own(_path(line.chosen), text.encode())


def _read(arguments: Sequence[str]) -> _Line | None:
    """The overrides of a command line; None if one of them is more than a choice or a value."""
    chosen, free, folder = [], dict[str, Any](), None
    seen = set[str]()
    for argument in arguments:
        match = _OVERRIDE.fullmatch(argument)
        if match is None or (key := match[1]) in seen:
            return None
        seen.add(key)
        is_free = key.partition(".")[0] in _FREE and ("." in key) == (key.partition(".")[0] in _FREE[:3])
        if (is_free or key == _FOLDER) and (value := _value(match[2])) is not Ellipsis:
            if key == _FOLDER:
                folder = str(match[2])
            else:
                free[key] = value
        elif is_free or key.startswith("hydra"):
            return None
        else:
            chosen.append(argument)
    return _Line(tuple(chosen), free, folder)


def _value(text: str) -> Any:
    """The value that Hydra reads in a text of a simple form; an ellipsis for any other."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _WHOLE.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    return text if _TEXT.fullmatch(text) else ...


def _put(values: dict[str, Any], key: str, value: Any) -> bool:
    """Sets a key that holds a single value; returns whether there is one."""
    *groups, name = key.split(".")
    group: Any = values
    for each in groups:
        group = group.get(each) if isinstance(group, dict) else None
    if not isinstance(group, dict) or isinstance(group.get(name, {}), dict | list):
        return False
    group[name] = value
    return True


def _stored(
    entry: Mapping[str, Any], job: Mapping[str, Any], arguments: Sequence[str], line: _Line, folder: str
) -> dict[str, Any]:
    """What Hydra writes to config.yaml, hydra.yaml and overrides.yaml."""
    task = [each for each in arguments if not each.startswith(f"{_FOLDER}=")]
    hydra = entry["hydra"]
    naming = hydra["job"]["config"]["override_dirname"]
    named = sorted(each for each in task if each.partition("=")[0] not in naming["exclude_keys"])
    dirname = naming["item_sep"].join(named).replace("=", naming["kv_sep"])
    own = [each for each in arguments if each.startswith(f"{_FOLDER}=")]
    hydra = {
        **hydra,
        "run": {**hydra["run"], "dir": line.folder or entry["folder"]},
        "mode": "RUN",
        "overrides": {"hydra": [*own, "hydra.mode=RUN"], "task": task},
        "job": {**hydra["job"], "override_dirname": dirname},
        "runtime": {**hydra["runtime"], "cwd": os.getcwd(), "output_dir": os.path.abspath(folder)},
    }
    return {"config": job, "hydra": {"hydra": hydra}, "overrides": task}


def _is_plain(text: str) -> bool:
    """Whether a text of the configuration refers to nothing but keys that are not free."""
    text = _DERIVED.sub("", text)
    is_free = any(name.partition(".")[0] in _FREE for name in _REFERENCE.findall(text))
    return not is_free and "${" not in _REFERENCE.sub("", text)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)
    elif isinstance(value, str):
        yield value


def _has_missing(values: Any) -> bool:
    return any(text == _MISSING for text in _texts(values))


def _has_own_devices(values: Mapping[str, Any]) -> bool:
    """Whether pools have devices of their own, whose defaults are taken from the configuration as Hydra has it."""
    fleet = values.get("fleet") or {}
    pools = (*(fleet.get("pools") or ()), fleet.get("prefill"), fleet.get("decode"))
    return any(isinstance(pool, dict) and pool.get("device") for pool in pools)


def _path(chosen: Sequence[str]) -> Path:
    key = repr((_FORMAT, sys.version, tuple(chosen), _state()))
    return cache_folder() / f"{hashlib.sha256(key.encode()).hexdigest()}.json"


def _state() -> list[Any]:
    """The files that compose, as they are now: of this project, and of Hydra, which its first file stands for."""
    own = [list(stamps(str(_PACKAGE / each))) or stamp(_PACKAGE / each) for each in _CODE]
    found = [importlib.util.find_spec(name) for name in (*_COMPOSERS, "hydra_plugins")]
    plugins = [sorted(os.listdir(each)) for each in (found[-1].submodule_search_locations or ())] if found[-1] else []
    return [own, plugins, *(stamp(Path(spec.origin)) for spec in found if spec is not None and spec.origin)]
