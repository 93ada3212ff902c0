"""Reads the measured runs of DistServe's `alignment/data-ground-truth`: measured-*.exp beside workload-*.exp.

The first line of a measured file is a Python list with one dict per request, in order of completion. Requests have no
ids; sorted by `issue_time` they are in the order of the workload, which is checked by their lengths.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import MeasuredRunError
from harness.measured.measured_run import (
    MeasuredRun,
    check_order,
    requests_table,
    series_table,
    trace_of,
)
from harness.measured.records import check_lengths, number_columns, read_json, read_text

_FIELDS = ("prompt_len", "output_len", "issue_time", "first_token_time", "complete_time")


def read(path: Path, workload: Path | None) -> MeasuredRun:
    """Read the file `path`; a given `workload` must have the lengths of the measured requests.

    Raises:
        MeasuredRunError: the file cannot be read or lacks fields, a request failed, or the workload is of another run.
    """
    if not path.is_file():
        raise MeasuredRunError(f"{path}: no such file; distserve:<file> is a measured-*.exp")
    fields = number_columns(path, _records(path), _FIELDS)
    check_lengths(path, fields, _FIELDS[:2])
    requests = requests_table(
        {
            "arrival_time": fields["issue_time"],
            "first_token_time": fields["first_token_time"],
            "finish_time": fields["complete_time"],
            "num_prompt_tokens": fields["prompt_len"],
            "num_output_tokens": fields["output_len"],
        }
    )
    check_order(path, requests)
    if workload is not None:
        planned = number_columns(workload, _list_of_dicts(workload, read_json(workload)), _FIELDS[:2])
        lengths = np.stack([planned[name] for name in _FIELDS[:2]], axis=1)
        measured = requests[["num_prompt_tokens", "num_output_tokens"]].to_numpy()
        if lengths.shape != measured.shape or (lengths != measured).any():
            raise MeasuredRunError(f"{workload}: not the workload of {path}: numbers of tokens or of requests differ")
    return MeasuredRun(
        kind="distserve",
        source=str(path),
        engine="vLLM of unknown version",
        data_files=(path,),
        trace=trace_of(path.stem, str(path), requests),
        requests=requests,
        series=series_table({}),
        notes=(
            "queue times, preemptions, cache hits and the state over time are not in this format",
            "the record does not tell which GPUs served it: data or expert parallelism would go unnoticed",
        ),
    )


def _records(path: Path) -> list[Any]:
    try:
        return _list_of_dicts(path, ast.literal_eval(read_text(path).splitlines()[0]))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):  # the last of the parser, for deep nests
        raise MeasuredRunError(f"{path}: line 1 is not a Python list of dicts, as in measured-*.exp") from None


def _list_of_dicts(path: Path, value: Any) -> list[Any]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise MeasuredRunError(f"{path}: not a list with a dict for each request")
    return value
