"""Baseten's completion traces: Parquet with a row per request of production, and hashes of the prompts' blocks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet

from engine.documents import DocumentError, check_regular
from harness.errors import TraceError
from harness.workload.readers.own import frame
from harness.workload.rows.layout import Layout
from harness.workload.rows.sieve import RowRules
from harness.workload.trace import Trace
from simulator.quantities import MAX_TOKENS

_TIME = "timestamp_start_unix_ms"
_COLUMNS = {_TIME: "arrival_time", "input_tokens": "num_prompt_tokens", "output_tokens": "num_output_tokens"}
_SESSIONS = ("provided_session_id", "poor_man_session_id")
_HASHES, _BLOCK_SIZE, _DURATION = "total_hashes", "block_size", "duration_e2e_ms"
_NUMBERS = (*_COLUMNS, _BLOCK_SIZE, _DURATION)
_OPTIONAL = (*_SESSIONS, _HASHES, _BLOCK_SIZE, _DURATION)


def read(path: str, rules: RowRules) -> Trace:
    """Reads a trace; its times are in milliseconds. A request that was cancelled before its first token gets one.

    With hashes of the prompts, requests of a session are a conversation; what they waited after the answer before
    (`think_time`) follows from the durations.

    Raises:
        TraceError: the file cannot be read, is of another format, or has no usable row.
    """
    table = _load(path)
    columns: dict[str, Any] = {ours: table[name] for name, ours in _COLUMNS.items()}
    is_cancelled = columns["num_output_tokens"] == 0
    columns["num_output_tokens"] = columns["num_output_tokens"].mask(is_cancelled, 1)
    if _HASHES in table and _BLOCK_SIZE in table:
        rows = zip(table["input_tokens"], table[_BLOCK_SIZE], table[_HASHES], strict=True)
        columns["hash_ids"] = [_ids(-1 - row, *values) for row, values in enumerate(rows)]
        sizes = table[_BLOCK_SIZE]
        columns["hash_block_size"] = sizes.where(sizes.between(1, MAX_TOKENS), 0).astype(np.int64)
        columns |= _sessions(table)
    trace = frame.read(pd.DataFrame(columns), path, rules, Layout(time_unit="ms"), name="baseten")
    cancelled = f"{is_cancelled.sum()} requests without an output token are replayed with one"
    return replace(trace, notes=(*trace.notes, cancelled)) if is_cancelled.any() else trace


def _load(path: str) -> pd.DataFrame:
    """The columns of the file that are read, in order of time."""
    try:
        check_regular(Path(path))
        found = pyarrow.parquet.read_schema(path).names
        if missing := [name for name in _COLUMNS if name not in found]:
            raise TraceError(f"{path}: not a Baseten trace: has no column {', '.join(missing)}")
        wanted = [name for name in (*_COLUMNS, *_OPTIONAL) if name in found]
        table: pd.DataFrame = pyarrow.parquet.read_table(path, columns=wanted).to_pandas(ignore_metadata=True)
        numbers = {name: pd.to_numeric(table[name], errors="coerce") for name in _NUMBERS if name in table}
        return table.assign(**numbers).sort_values(_TIME, kind="stable", ignore_index=True)
    except DocumentError as error:
        raise TraceError(f"{path}: {error}") from None
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        raise TraceError(f"{path}: cannot be read as Parquet: {reason}") from None


def _ids(own: int, num_tokens: float, block_size: float, hashes: Any) -> Any:
    """The hashes of a prompt's blocks, with an id that no other prompt has for a last block that is not full."""
    ids = np.asarray(hashes)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or not block_size > 0:
        return hashes
    signed = ids.astype(np.int64)  # hashes that fill 64 bits stay different
    return np.append(signed, own) if len(ids) == num_tokens // block_size != num_tokens / block_size else signed


def _sessions(table: pd.DataFrame) -> dict[str, Any]:
    """Sessions, each request without one its own; and what it waited since the end of the one before."""
    key = next((name for name in _SESSIONS if name in table), None)
    if key is None:
        return {}
    codes, values = pd.factorize(table[key].astype("string"))
    sessions = np.where(codes < 0, len(values) + np.arange(len(codes)), codes)
    if _DURATION not in table:
        return {"session_id": sessions}
    ends = table[_TIME] + table[_DURATION]
    waits = (table[_TIME] - ends.groupby(sessions).shift()) / 1000
    return {"session_id": sessions, "think_time": waits.clip(lower=0).fillna(0)}
