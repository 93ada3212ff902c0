"""Readers of measured runs: every format becomes a `MeasuredRun`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from engine.documents import user_path
from harness.errors import MeasuredRunError
from harness.measured import client_records, distserve, llmservingsim, own_run, vllm_bench
from harness.measured.measured_run import MeasuredRun

_WITH_WORKLOAD: Mapping[str, Callable[[Path, Path | None], MeasuredRun]] = {
    "run": own_run.read,
    "llmservingsim": llmservingsim.read,
    "distserve": distserve.read,
}
_ALONE: Mapping[str, Callable[[Path], MeasuredRun]] = {
    "vllm_bench": vllm_bench.read,
    "guidellm": client_records.read_guidellm,
    "aiperf": client_records.read_aiperf,
    "inference_perf": client_records.read_inference_perf,
}
READERS = (*_WITH_WORKLOAD, *_ALONE, "csv")

__all__ = ["READERS", "MeasuredRun", "load_measured"]


def load_measured(name: str, workload: str | None = None, columns: Mapping[str, str] = {}) -> MeasuredRun:
    """The measured run that `<kind>:<path>` names; kinds are those of `READERS`. `columns` are as in `read_csv`.

    Raises:
        MeasuredRunError: the kind is unknown, or the record cannot be used.
        TwinServeError: a file it refers to cannot be used.
    """
    kind, separator, path = name.partition(":")
    if not separator or kind not in READERS or not path:
        raise MeasuredRunError(f"measured run {name!r}: must be <kind>:<path>, the kind one of {', '.join(READERS)}")
    if columns and kind != "csv":
        raise MeasuredRunError(f"validation.columns: {kind} files have columns of their own; leave it out")
    if kind in _WITH_WORKLOAD:
        return _WITH_WORKLOAD[kind](user_path(path), None if workload is None else user_path(workload))
    if workload is not None:
        raise MeasuredRunError(f"validation.workload: {kind} files hold the workload themselves; leave it out")
    return client_records.read_csv(user_path(path), columns) if kind == "csv" else _ALONE[kind](user_path(path))
