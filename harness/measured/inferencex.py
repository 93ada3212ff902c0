"""Public measurements of many configurations: `silicon_sample.csv` of aiconfigurator, from InferenceX and others.

One row is one closed-loop benchmark of a server: a number of clients, each of which sends its next request when it has
the answer to the last. The file gives TTFT and TPOT; it does not say of which statistic, nor how the client drew
lengths and started.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from harness.errors import MeasuredRunError
from harness.measured.records import read_text
from harness.workload.rows.value_checks import as_floats

_NUMBERS = ("isl", "osl", "batch_size", "tp_size", "silicon_ttft_ms", "silicon_tpot_ms")
_TEXTS = ("id", "backend", "backend_version", "model_path", "system", "precision", "mode")
_PARALLELISM = ("pp_size", "attention_dp_size", "moe_ep_size", "moe_tp_size")
_COUNTS = (*_NUMBERS, *_PARALLELISM)
_LARGEST = 1e9
_SOURCE, _DAY = "silicon_data_source", "day"


class Labels(NamedTuple):
    """Which layouts the servers of rows had, where their scripts do not heed what rows are labelled with.

    Attributes:
        ranks_from: by prompt length, from how many clients on rows that are labelled with data-parallel ranks had them;
            others were one server on as many GPUs, with whole experts. None: all had them.
        shares_experts: whether rows that are labelled with whole experts had them.
    """

    ranks_from: Mapping[int, int] | None = None
    shares_experts: bool = True


class Rows(NamedTuple):
    """Measurements of one model on one system.

    Attributes:
        table: id, isl, osl (tokens), concurrency, tensor_parallel_size, ttft_ms, tpot_ms, data_parallel_size,
            expert_parallel.
        left_out: number of selected rows that are not simulated, by reason.
    """

    table: pd.DataFrame
    left_out: dict[str, int]


AS_LABELLED = Labels()


def read_rows(path: Path, select: Mapping[str, str], labels: Labels = AS_LABELLED) -> Rows:
    """The rows whose columns have the values of `select`; those of an aggregated server without stages whose GPUs share
    all tensors, all but whole experts, or with vLLM nothing but experts (data-parallel ranks). The column `day` is that
    of the measurement, such as 2026-04-03, "" where the file does not tell; `select` has what days start with.

    Rows of ranks name the GPUs twice, as tp_size and as attention_dp_size, and the clients of one rank: their TPOT is
    that of rows without ranks, on as many GPUs, that have attention_dp_size times the clients.

    Raises:
        MeasuredRunError: the file cannot be read or has other columns, no row is selected, or rows of several models,
            systems, backends or precisions are.
    """
    try:
        table = pd.read_csv(StringIO(read_text(path)))
    except (ValueError, OverflowError) as error:
        raise MeasuredRunError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None
    if absent := [name for name in (*_NUMBERS, *_TEXTS) if name not in table.columns]:
        raise MeasuredRunError(f"{path}: no column {', '.join(absent)}")
    table = table.assign(**{_DAY: days(table)})
    for name, value in select.items():
        if name not in table.columns:
            raise MeasuredRunError(f"validation.select.{name}: {path} has no such column ({', '.join(table.columns)})")
        texts = _texts(table[name])
        table = table[texts.str.startswith(value) if name == _DAY else texts == value]
    if table.empty:
        chosen = ", ".join(f"{name}={value}" for name, value in select.items())
        raise MeasuredRunError(f"{path}: no row with {chosen or 'any value'}")
    for name in ("model_path", "system", "backend", "precision"):
        values = sorted(_texts(table[name]).unique())
        if len(values) > 1:
            raise MeasuredRunError(
                f"{path}: rows of several kinds; choose one with validation.select.{name}=: {', '.join(values)}"
            )
    return _usable(path, table, labels)


def days(table: pd.DataFrame) -> pd.Series[str]:
    """On which day each row was measured, "" where the file does not tell."""
    if _SOURCE not in table.columns:
        return pd.Series("", index=table.index)
    return table[_SOURCE].astype(str).str.extract(r"measured=(\d{4}-\d\d-\d\d)")[0].fillna("")


def _texts(column: pd.Series[Any]) -> pd.Series[str]:
    """The values as text; nan where there is none."""
    return column.astype(object).fillna("nan").astype(str)


def _usable(path: Path, table: pd.DataFrame, labels: Labels) -> Rows:
    table = table.assign(**{name: as_floats(table[name]) for name in _COUNTS if name in table.columns})
    numbers = table[list(_NUMBERS)]
    is_sound = (numbers.gt(0) & numbers.lt(_LARGEST)).all(axis=1) & (numbers["osl"] > 1)
    is_alone = table["mode"] == "agg"
    stages, ranks, experts, cuts = (
        table[name].fillna(1) if name in table.columns else pd.Series(1.0, table.index) for name in _PARALLELISM
    )
    gpus, is_vllm = numbers["tp_size"], table["backend"] == "vllm"
    # Experts on more GPUs than attention are replicas of attention.
    shares_tensors = (ranks == 1) & (experts == 1) & (cuts <= gpus)
    has_whole = is_vllm & (ranks == 1) & (experts == gpus) & (cuts == 1)
    has_ranks = is_vllm & (ranks > 1) & (ranks == gpus) & (experts == gpus * ranks) & (cuts == 1)
    is_known = (stages == 1) & (shares_tensors | has_whole | has_ranks)
    reasons = {
        "prefill and decode on different GPUs": ~is_alone,
        "not numbers above 0": is_alone & ~is_sound,
        "pipeline, data or expert parallelism": is_sound & is_alone & ~is_known,
    }
    numbers = numbers.assign(batch_size=numbers["batch_size"] * ranks)
    if labels.ranks_from is not None:
        least = numbers["isl"].map(labels.ranks_from).fillna(np.inf)
        ranks = ranks.where(numbers["batch_size"] >= least, 1.0)
    numbers = numbers.assign(tp_size=gpus / ranks, data_parallel_size=ranks)
    numbers = numbers.assign(expert_parallel=(experts > 1) & labels.shares_experts)
    used = numbers[is_sound & is_alone & is_known]
    if used.empty:
        raise MeasuredRunError(f"{path}: none of the {len(table)} selected rows can be simulated")
    whole = ("isl", "osl", "batch_size", "tp_size", "data_parallel_size")
    rows = used.astype(dict.fromkeys(whole, np.int64)).rename(
        columns={
            "batch_size": "concurrency",
            "tp_size": "tensor_parallel_size",
            "silicon_ttft_ms": "ttft_ms",
            "silicon_tpot_ms": "tpot_ms",
        }
    )
    rows.insert(0, "id", table.loc[rows.index, "id"].astype(str))
    order = ["isl", "osl", "data_parallel_size", "tensor_parallel_size", "concurrency"]
    left_out = {reason: int(rows_.sum()) for reason, rows_ in reasons.items() if rows_.any()}
    rows = rows.sort_values(order)
    is_repeated = rows.drop(columns="id").duplicated()  # the file has some rows under several names
    if is_repeated.any():
        left_out["repeated"] = int(is_repeated.sum())
    return Rows(rows[~is_repeated].reset_index(drop=True), left_out)
