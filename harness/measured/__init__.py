"""Readers of measured runs: every format becomes a `MeasuredRun`."""

from __future__ import annotations

from engine.documents import user_path
from harness.errors import MeasuredRunError
from harness.measured import distserve, llmservingsim, own_run, vllm_bench
from harness.measured.measured_run import MeasuredRun

READERS = {
    "run": own_run.read,
    "llmservingsim": llmservingsim.read,
    "distserve": distserve.read,
    "vllm_bench": vllm_bench.read,
}

__all__ = ["READERS", "MeasuredRun", "load_measured"]


def load_measured(name: str, workload: str | None = None) -> MeasuredRun:
    """The measured run that `<kind>:<path>` names; kinds are those of `READERS`.

    Raises:
        MeasuredRunError: the kind is unknown, or the record cannot be used.
        TwinServeError: a file it refers to cannot be used.
    """
    kind, separator, path = name.partition(":")
    if not separator or kind not in READERS or not path:
        raise MeasuredRunError(f"measured run {name!r}: must be <kind>:<path>, the kind one of {', '.join(READERS)}")
    return READERS[kind](user_path(path), None if workload is None else user_path(workload))
