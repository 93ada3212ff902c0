"""Names of the folders of a sweep's jobs: what the sweep varies, `block_size=16,scheduler=vllm`.

The first sweep in a folder leaves `sweep.json` there: which keys it varied, and the values of those that it fixed. A
later sweep in the same folder names its jobs by the same keys and finds the finished ones. A key that it fixes
differently is part of the names, so that its jobs have folders of their own.
"""

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from engine.documents import DocumentError, read_json
from harness.errors import ConfigError
from harness.results.stored.files import write_whole

RECORD = "sweep.json"
_MAX_FOLDER_NAME = 120  # well under the 255 bytes of common file systems, and still readable


def job_folder(overrides: str) -> str:
    """Folder name of a job: its overrides (`key=value,key=value`), shortened and with a hash where they make no name.

    Of paths the last part is shown. The name depends on nothing but the overrides, so a sweep that is extended finds
    the folders of its finished jobs.
    """
    name = re.sub(r"=[^,=]*/", "=", overrides)
    name = re.sub(r"[^\w.,=+\-\[\]]", "_", name, flags=re.ASCII)[:_MAX_FOLDER_NAME]
    if name != overrides:
        name = f"{name}-{hashlib.sha256(overrides.encode()).hexdigest()[:8]}"
    return name or "defaults"


# At import, because worker processes of a launcher import this module and nothing calls into it before Hydra does.
OmegaConf.register_new_resolver("job_folder", job_folder, replace=True)


def overrides_of(config: DictConfig) -> list[Override]:
    """What the sweeper of a composed multirun combines: the preset's parameters, then the command line."""
    params = OmegaConf.select(config.hydra, "sweeper.params") or {}
    lines = [f"{key}={value}" for key, value in params.items()] + list(config.hydra.overrides.task)
    return OverridesParser.create().parse_overrides(lines)


def name_by_what_varies(config: DictConfig, folder: Path) -> None:
    """Leave keys that the sweep in `folder` does not vary out of its folders' names, in `config`, Hydra's of a sweep.

    Raises:
        ConfigError: the earlier sweep in the folder had a value that this one leaves to its default: its results would
            be replaced by those of another configuration.
    """
    settings = config.hydra.job.config.override_dirname
    earlier = _read(folder / RECORD)
    varied, fixed = split(overrides_of(config), settings.exclude_keys)
    named = names_of(varied, fixed, earlier)
    if earlier is None:
        record = {"varied": sorted(named), "fixed": {key: text for key, text in fixed.items() if key not in named}}
        write_whole(folder / RECORD, lambda path: path.write_text(json.dumps(record, indent=2), encoding="utf-8"))
    unnamed = [*settings.exclude_keys, *(key for key in fixed if key not in named)]
    # Jobs are composed again, in other processes, with the overrides of Hydra's own keys.
    quoted = ",".join(f"'{key}'" for key in unnamed)
    config.hydra.overrides.hydra.append(f"hydra.job.config.override_dirname.exclude_keys=[{quoted}]")


def check_jobs(config: DictConfig) -> None:
    """Check that a sweep, of which `config` is Hydra's, has jobs, each with a folder of its own.

    Raises:
        ConfigError: it has none, or some of them would share a folder, where the last one would replace the others.
    """
    overrides = overrides_of(config)
    for override in overrides:
        if _values(override) == []:
            raise ConfigError(f"{override.input_line}: has no value, so that the sweep has no job")
    subdir = str(OmegaConf.to_container(config.hydra.sweep, resolve=False)["subdir"])  # type: ignore[index, call-overload]
    if number_of_jobs(overrides) == 1 or re.search(r"\bjob\.(num|id)\b", subdir):
        return
    varied, _ = split(overrides, ())
    named = set(re.findall(r"\$\{([\w./@]+)\}", subdir))
    if "override_dirname" in subdir:
        named |= split(overrides, config.hydra.job.config.override_dirname.exclude_keys)[0]
    if shared := sorted(varied - named):
        keys = " and ".join(shared)
        raise ConfigError(f"hydra.sweep.subdir={subdir}: jobs that differ in {keys} alone would share a folder")


def split(overrides: Iterable[Override], left_out: Collection[str]) -> tuple[set[str], dict[str, str]]:
    """The keys that have several values, and the overrides of the others by key; both without those in `left_out`."""
    varied: set[str] = set()
    fixed: dict[str, str] = {}
    for override in overrides:
        key, text = override.key_or_group, override.input_line or ""
        if key in left_out:
            continue
        if override.is_sweep_override():
            varied.add(key)
        fixed[key] = f"{fixed[key]} {text}" if key in fixed else text
    return varied, {key: text for key, text in fixed.items() if key not in varied}


def names_of(varied: Collection[str], fixed: Mapping[str, str], earlier: Mapping[str, Any] | None) -> set[str]:
    """The keys that name the folders of jobs, given what the first sweep in the same folder left, if there was one.

    Raises:
        ConfigError: as `name_by_what_varies`.
    """
    if earlier is None:
        return set(varied) or set(fixed)
    for key, text in earlier["fixed"].items():
        if key not in fixed and key not in varied:
            raise ConfigError(f"hydra.sweep.dir: the sweep in this folder has {text}; repeat it, or use another folder")
    differing = {key for key, text in fixed.items() if earlier["fixed"].get(key) != text}
    return {*varied, *earlier["varied"], *differing}


def _read(path: Path) -> Mapping[str, Any] | None:
    """What an earlier sweep recorded; None where there was none or its record is damaged."""
    try:
        record = read_json(path)
    except (DocumentError, OSError):
        return None
    shape = (
        isinstance(record, dict) and isinstance(record.get("varied"), list) and isinstance(record.get("fixed"), dict)
    )
    return record if shape else None


def number_of_jobs(overrides: Sequence[Override]) -> int | None:
    """How many combinations of values there are; None where that is not known beforehand."""
    values = {override.get_key_element(): _values(override) for override in overrides}
    counts = [len(texts) for texts in values.values() if texts is not None]
    return math.prod(counts) if len(counts) == len(values) else None


def width_of_names(overrides: Sequence[Override], left_out: Collection[str]) -> int:
    """Characters of the longest name that a job can have; 0 where that is not known beforehand."""
    varied, _ = split(overrides, left_out)
    named = [override for override in overrides if override.key_or_group in varied]
    lengths = [len(override.key_or_group) + 2 + max(map(len, _values(override) or [""])) for override in named]
    return max(sum(lengths) - 1, 0)


def _values(override: Override) -> list[str] | None:
    """The values that a key takes in a sweep, one if it does not vary; None where they cannot be listed."""
    if not override.is_sweep_override():
        return [str(override.get_value_element_as_str())]
    return list(override.sweep_string_iterator()) if override.is_discrete_sweep() else None
