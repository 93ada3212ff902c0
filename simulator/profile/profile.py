"""Kernel-cost profiles: what each operator of a model takes on a device, as small tables that diff well.

A profile is a folder `<device>/<model>/tp<N>` with `meta.yaml` and a CSV file per table. `time_us` are medians in
microseconds of one call on one rank; `spread_us`, where given, is half their interquartile range, and `fastest_us` what
the table holds if the fastest are taken instead: the machine's own speed, where others slow it down most of the time.
`mean_over_median` in meta.yaml is how many times its median a decode step takes in the mean.

    tokens.csv       operator,num_tokens,time_us      linear layers, norms, rotary, activation, KV store, embedding
    sequences.csv    operator,num_sequences,time_us   LM head, sampler
    attention.csv    prefill_tokens,prefill_context,num_decodes,decode_context,time_us   one layer
                     prefill_context: tokens before the chunk; decode_context: mean context of the decodes, with the
                     token at hand. Rows with both are of batches that mix a chunk and decodes (optional). Times of
                     decodes on a CPU include what they add to other operators, by driving weights out of caches;
                     with token_buckets our profiler launches decodes as CUDA graphs do: padded to a bucket, and for the
                     longest context of the engine.
    uneven.csv       prefill_tokens,num_decodes,gain   uneven contexts take as long as if every one were
                     mean + gain·standard deviation (optional)
    deviations.csv   num_decodes,decode_context,deviation_pct,time_us   one layer's decode attention of uneven contexts:
                     their mean, and their standard deviation in percent of it (optional; instead of uneven.csv)
    scattered.csv    num_tokens,time_us               what a step of decodes takes longer, divided by the layers, if the
                     KV blocks of so many context tokens do not follow the one before in memory; the tables of attention
                     are then of blocks in one piece (optional: for CPUs)
    all_reduce.csv   num_bytes,time_us                with more than one rank (optional: a constant can stand in)
    copies.csv       num_blocks,time_us               copies of KV blocks before a step, all layers (optional)
    steps.csv        kind,num_tokens,time_us          what a whole step takes beyond its operators: host overhead,
                     launch gaps, caches (optional); kind is decode, prefill or mixed
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import yaml
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

FORMAT_VERSION = 1
META = "meta.yaml"
_KEYS = {
    "tokens": ("operator", "num_tokens"),
    "sequences": ("operator", "num_sequences"),
    "attention": ("prefill_tokens", "prefill_context", "num_decodes", "decode_context"),
    "uneven": ("prefill_tokens", "num_decodes"),
    "deviations": ("num_decodes", "decode_context", "deviation_pct"),
    "scattered": ("num_tokens",),
    "all_reduce": ("num_bytes",),
    "copies": ("num_blocks",),
    "steps": ("kind", "num_tokens"),
}
_REQUIRED = ("tokens", "sequences", "attention")
_OPERATORS = {"tokens": ("qkv_proj", "o_proj"), "sequences": ("lm_head",)}
_MLP = ("gate_up_proj", "down_proj")  # of a dense model; a mixture of experts has "experts"
_KINDS = ("decode", "prefill", "mixed")
_FASTEST = "fastest_us"
_LONGEST_CALL_US = 6e7  # a minute: no single call takes longer, unless its unit is another one


class ProfileError(ValueError):
    """A profile is missing, unreadable, incomplete, or was made for something else."""


def _ascending(sizes: tuple[int, ...]) -> tuple[int, ...]:
    if any(low >= high for low, high in pairwise(sizes)):
        raise ValueError("must be ascending")
    return sizes


Count = Annotated[int, Field(ge=1, strict=True)]


@dataclass(frozen=True)
class ProfileMeta:
    """What a profile was measured on, and how its tables are to be read.

    Attributes:
        device, model: names, as the tools that measured report them.
        tensor_parallel_size: ranks that shared the model.
        num_layers: layers of the model, each with one attention call.
        calls: calls per step of every operator in the tables of tokens and sequences.
        shape: the model's sizes, where known; a profile serves every model of this shape.
        token_buckets: a step is padded to the next of these numbers of tokens (CUDA graphs); empty without padding.
        padded_steps: which steps are padded.
        padded_heads: whether the operators of the sequences table are padded with it.
        batched_prefill: one attention call serves all chunks of a step, so that its fixed cost counts once.
        round_up_tokens: an operator takes the time of the next measured number of tokens, as tiles make it, instead of
            what lies on the line between.
        mean_over_median: how many times its median a whole decode step takes in the mean.
        source: how it was measured: command, date, software, repeats.
    """

    device: str
    model: str
    tensor_parallel_size: Count
    num_layers: Count
    calls: dict[str, Count]
    dtype: str = "bfloat16"
    block_size: Count | None = None
    shape: dict[str, Any] = field(default_factory=dict)
    token_buckets: Annotated[tuple[Count, ...], AfterValidator(_ascending)] = ()
    padded_steps: Literal["decode", "all"] = "decode"
    padded_heads: bool = False
    batched_prefill: bool = True
    round_up_tokens: bool = False
    mean_over_median: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    source: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Profile:
    """Tables by name, columns as in the module's description, sorted by their axes.

    Raises:
        ProfileError: a table or an operator is missing, or a table breaks the format.
    """

    meta: ProfileMeta
    tables: dict[str, pd.DataFrame]

    def __post_init__(self) -> None:
        missing = [name for name in _REQUIRED if name not in self.tables]
        if missing:
            raise ProfileError(f"no {' and '.join(missing)} table (there: {', '.join(self.tables) or 'none'})")
        object.__setattr__(self, "tables", {name: _checked(name, table) for name, table in self.tables.items()})
        self._check_operators()

    def _check_operators(self) -> None:
        for name, required in _OPERATORS.items():
            there = set(self.tables[name]["operator"])
            lacking = [operator for operator in required if operator not in there]
            if name == "tokens" and "experts" not in there:
                lacking += [operator for operator in _MLP if operator not in there]
            if lacking:
                raise ProfileError(f"{name}: no {', '.join(lacking)} (there: {', '.join(sorted(there))})")
            uncounted = sorted(there - set(self.meta.calls))
            if uncounted:
                raise ProfileError(f"{META}: calls of {', '.join(uncounted)} missing")
        measured = {*self.tables["tokens"]["operator"], *self.tables["sequences"]["operator"]}
        if unmeasured := sorted(set(self.meta.calls) - measured):
            raise ProfileError(f"{', '.join(unmeasured)}: in the calls of {META}, but not measured")
        attention = self.tables["attention"]
        for kind, other in (("prefill_tokens", "num_decodes"), ("num_decodes", "prefill_tokens")):
            if not ((attention[kind] > 0) & (attention[other] == 0)).any():
                raise ProfileError(f"attention: no rows with {other}=0, of {kind} alone")

    @cached_property
    def fastest(self) -> Profile:
        """The profile with the fastest of what was timed in place of medians.

        Raises:
            ProfileError: a table does not hold it.
        """
        times = {name: table for name, table in self.tables.items() if name != "uneven"}
        if lacking := [name for name, table in times.items() if _FASTEST not in table.columns]:
            raise ProfileError(
                f"no fastest times: no column {_FASTEST} in {', '.join(lacking)}; profiles made by task=profile have it"
            )
        fastest = {name: table.drop(columns=_FASTEST).assign(time_us=table[_FASTEST]) for name, table in times.items()}
        return dataclasses.replace(self, tables=self.tables | fastest)

    def holes(self) -> list[str]:
        """Points of the attention grids that were not measured though their row and their column were."""
        found = []
        attention = self.tables["attention"]
        for rows, columns, other in (
            ("num_decodes", "decode_context", "prefill_tokens"),
            ("prefill_tokens", "prefill_context", "num_decodes"),
        ):
            alone = attention[(attention[other] == 0) & (attention[rows] > 0)]
            grid = alone.pivot(index=rows, columns=columns, values="time_us")
            if missing := int(grid.isna().to_numpy().sum()):
                row, column = np.argwhere(grid.isna().to_numpy())[0]
                first = f"{rows}={grid.index[row]}, {columns}={grid.columns[column]}"
                found.append(f"{missing} of {grid.size} points of {rows} x {columns}, the first at {first}")
        return found


def _checked(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """`table` with its columns in order and its rows sorted by the axes."""
    if name not in _KEYS:
        raise ProfileError(f"{name}: unknown table (known: {', '.join(_KEYS)})")
    keys = list(_KEYS[name])
    value = "gain" if name == "uneven" else "time_us"
    columns = [*keys, value]
    if missing := [column for column in columns if column not in table.columns]:
        raise ProfileError(
            f"{name}: no column {', '.join(missing)} (there: {', '.join(map(str, table.columns))}); "
            "times are in microseconds, in a column time_us"
        )
    table = table[[*columns, *(column for column in (_FASTEST, "spread_us") if column in table.columns)]]
    if table.empty:
        raise ProfileError(f"{name}: no rows")
    numbers = table.drop(columns=[key for key in ("operator", "kind") if key in table.columns])
    for column in numbers.columns:
        if not pd.api.types.is_numeric_dtype(numbers[column]) or not np.isfinite(numbers[column]).all():
            raise ProfileError(f"{name}: {column} holds something that is not a number")
    axes = [key for key in keys if key not in ("operator", "kind")]
    if (numbers[axes] < 0).to_numpy().any() or (numbers[axes] % 1 != 0).to_numpy().any():
        raise ProfileError(f"{name}: {', '.join(axes)} must be whole numbers from 0")
    if name == "scattered" and (table["num_tokens"] < 1).any():
        raise ProfileError(f"{name}: num_tokens must not be below 1")
    for time in (column for column in ("time_us", _FASTEST) if column in table.columns):
        if name == "scattered" and (table[time] < 0).any():
            raise ProfileError(f"{name}: {time} must not be below 0")
        if name not in ("steps", "scattered") and (table[time] <= 0).any():
            raise ProfileError(f"{name}: {time} must be above 0")
        if table[time].abs().max() > _LONGEST_CALL_US:
            raise ProfileError(f"{name}: {time} reaches {table[time].abs().max():.3g}: are these microseconds?")
    if name == "steps" and (unknown := set(table["kind"]) - set(_KINDS)):
        raise ProfileError(f"steps: unknown kind {', '.join(sorted(unknown))} (known: {', '.join(_KINDS)})")
    if (twice := table.duplicated(keys)).any():
        row = table[twice].iloc[0]
        raise ProfileError(f"{name}: {', '.join(f'{key}={row[key]}' for key in keys)} is there twice")
    return table.astype(dict.fromkeys(axes, "int64")).sort_values(keys, ignore_index=True)


def load_profile(folder: Path) -> Profile:
    """Read a profile folder.

    Raises:
        ProfileError: it is not there, cannot be read, or breaks the format.
    """
    if not folder.is_dir():
        raise ProfileError(f"no folder {str(folder)!r}")
    meta = _load_meta(folder)
    tables = {}
    for name in _KEYS:
        path = folder / f"{name}.csv"
        if path.exists():
            try:
                tables[name] = pd.read_csv(path)
            except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
                raise ProfileError(f"{path.name}: not a CSV table: {error}") from None
    return Profile(meta, tables)


def rank_folder(folder: Path, tensor_parallel_size: int) -> Path:
    """The part of a profile for so many ranks.

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
    for name in _KEYS:
        path = folder / f"{name}.csv"
        if name in profile.tables:
            profile.tables[name].round(3).to_csv(path, index=False, lineterminator="\n")
        else:
            path.unlink(missing_ok=True)
    meta = {"format_version": FORMAT_VERSION, "units": {"time": "us"}, **dataclasses.asdict(profile.meta)}
    meta["token_buckets"] = list(profile.meta.token_buckets)
    (folder / META).write_text(yaml.safe_dump(meta, sort_keys=False, width=120), encoding="utf-8")


def read_meta(folder: Path, hint: str = "") -> dict[str, Any]:
    """The keys of a folder's `meta.yaml`; `hint` ends the message where there is none.

    Raises:
        ProfileError: it is not there, or no YAML file with keys.
    """
    path = folder / META
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError:
        there = ", ".join(sorted(entry.name for entry in folder.glob("*"))) or "nothing"
        raise ProfileError(f"no {META} in {str(folder)!r} (there: {there}){hint}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise ProfileError(f"{str(path)!r} is not YAML") from None
    if not isinstance(values, dict):
        raise ProfileError(f"{str(path)!r} holds no keys")
    return values


def _load_meta(folder: Path) -> ProfileMeta:
    values = read_meta(folder)
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
