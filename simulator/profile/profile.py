"""Kernel-cost profiles: what each operator of a model takes on a device, as small tables.

`time_us` are medians in microseconds of one call on one rank; `spread_us`, where given, is half the interquartile range
of the times. `simulator.profile.files` reads and writes a profile as a folder with a CSV file per table:

    tokens       operator,num_tokens,time_us      linear layers, norms, rotary, activation, KV store, embedding
    sequences    operator,num_sequences,time_us   LM head, sampler
    attention    prefill_tokens,prefill_context,num_decodes,decode_context,time_us   one layer
                 prefill_context: tokens before the chunk; decode_context: mean context of the decodes, their new token
                 included. Rows with a chunk and decodes are of batches that mix both (optional). On a CPU decodes drive
                 weights out of the caches, and what other operators take longer by that is in the decodes' times. With
                 token_buckets our profiler launches decodes as CUDA graphs do: padded to a bucket, and for the longest
                 context of the engine.
    uneven       prefill_tokens,num_decodes,gain   contexts of different lengths take as long as if each were
                 mean + gain·standard deviation (optional)
    deviations   num_decodes,decode_context,deviation_pct,time_us   one layer's decode attention of such contexts:
                 their mean, and their standard deviation in percent of it (optional; instead of uneven)
    all_reduce   num_bytes,time_us                with more than one rank (optional: a constant can stand in)
    copies       num_blocks,time_us               copies of KV blocks before a step, all layers (optional)
    steps        kind,num_tokens,time_us          what a whole step takes beyond its operators: host overhead, launch
                 gaps, caches (optional); kind is decode, prefill or mixed
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import AfterValidator, Field

META = "meta.yaml"
KEYS = {
    "tokens": ("operator", "num_tokens"),
    "sequences": ("operator", "num_sequences"),
    "attention": ("prefill_tokens", "prefill_context", "num_decodes", "decode_context"),
    "uneven": ("prefill_tokens", "num_decodes"),
    "deviations": ("num_decodes", "decode_context", "deviation_pct"),
    "all_reduce": ("num_bytes",),
    "copies": ("num_blocks",),
    "steps": ("kind", "num_tokens"),
}
_REQUIRED = ("tokens", "sequences", "attention")
_OPERATORS = {"tokens": ("qkv_proj", "o_proj"), "sequences": ("lm_head",)}
_MLP = ("gate_up_proj", "down_proj")  # of a dense model; a mixture of experts has "experts"
_KINDS = ("decode", "prefill", "mixed")
_LONGEST_CALL_US = 6e7  # a minute: a longer time is not in microseconds


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
        padded_heads: whether the operators of the sequences table are padded to the same bucket.
        batched_prefill: one attention call serves all chunks of a step, so that its fixed cost counts once.
        round_up_tokens: an operator that computes in tiles takes the time of the next measured number of tokens; it is
            not interpolated.
        mean_over_median: mean time of whole decode steps, as a multiple of their median.
        synchronous_step_us, synchronous_sequence_us: what a step, and each sequence that decodes in it, adds where the
            host plans a step after the one before it (no asynchronous scheduling); 0 where steps were timed that way.
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
    synchronous_step_us: Annotated[float, Field(ge=0, le=1e5)] = 0.0
    synchronous_sequence_us: Annotated[float, Field(ge=0, le=1e4)] = 0.0
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

    def holes(self) -> list[str]:
        """Attention points that are missing though others of their row and column were measured; a line per grid."""
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


def _check_times(name: str, times: pd.Series[float]) -> None:
    if name != "steps" and (times <= 0).any():
        raise ProfileError(f"{name}: time_us must be above 0")
    if times.abs().max() > _LONGEST_CALL_US:
        raise ProfileError(f"{name}: time_us reaches {times.abs().max():.3g}: are these microseconds?")


def _checked(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """`table` with its columns in order and its rows sorted by the axes."""
    if name not in KEYS:
        raise ProfileError(f"{name}: unknown table (known: {', '.join(KEYS)})")
    keys = list(KEYS[name])
    value = "gain" if name == "uneven" else "time_us"
    columns = [*keys, value]
    if missing := [column for column in columns if column not in table.columns]:
        raise ProfileError(
            f"{name}: no column {', '.join(missing)} (there: {', '.join(map(str, table.columns))}); "
            "times are in microseconds, in a column time_us"
        )
    table = table[[*columns, *(["spread_us"] if "spread_us" in table.columns else [])]]
    if table.empty:
        raise ProfileError(f"{name}: no rows")
    numbers = table.drop(columns=[key for key in ("operator", "kind") if key in table.columns])
    for column in numbers.columns:
        if not pd.api.types.is_numeric_dtype(numbers[column]) or not np.isfinite(numbers[column]).all():
            raise ProfileError(f"{name}: {column} holds something that is not a number")
    axes = [key for key in keys if key not in ("operator", "kind")]
    if (numbers[axes] < 0).to_numpy().any() or (numbers[axes] % 1 != 0).to_numpy().any():
        raise ProfileError(f"{name}: {', '.join(axes)} must be whole numbers from 0")
    if value == "time_us":
        _check_times(name, table["time_us"])
    if name == "steps" and (unknown := set(table["kind"]) - set(_KINDS)):
        raise ProfileError(f"steps: unknown kind {', '.join(sorted(unknown))} (known: {', '.join(_KINDS)})")
    if (twice := table.duplicated(keys)).any():
        row = table[twice].iloc[0]
        raise ProfileError(f"{name}: {', '.join(f'{key}={row[key]}' for key in keys)} is there twice")
    return table.astype(dict.fromkeys(axes, "int64")).sort_values(keys, ignore_index=True)
