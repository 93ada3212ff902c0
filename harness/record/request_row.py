"""The row of a request that has ended, or been given up."""

from __future__ import annotations

from struct import Struct

from engine.core.kv.shared_store import STORE
from engine.core.kv.tier import DISK, HOST
from engine.core.sequence import Request, Sequence
from harness.record.request_times import UNSET

REQUEST_COLUMNS = (
    "row", "status", "arrival_ns", "first_scheduled_ns", "first_token_ns", "finish_ns", "num_output_tokens",
    "num_cached_tokens", "num_recomputed_tokens", "num_preemptions", "num_swaps", "num_partial_preemptions",
    "num_host_cached_tokens", "num_disk_cached_tokens", "num_store_cached_tokens",
)  # fmt: skip
_PACK = Struct(f"{len(REQUEST_COLUMNS)}q").pack  # faster than to extend an array by a tuple


def request_row(request: Request, status: int) -> bytes:
    """`REQUEST_COLUMNS` of a request, as int64."""
    sequences = request.sequences
    counts = _counts(sequences[0])
    if len(sequences) > 1:
        counts = tuple(map(sum, zip(*map(_counts, sequences), strict=True)))
    scheduled, first, finish = request.first_scheduled_time, request.first_token_time, request.finish_time
    return _PACK(
        request.request_id,
        status,
        request.arrival_time,
        UNSET if scheduled is None else scheduled,
        UNSET if first is None else first,
        UNSET if finish is None else finish,
        *counts,
    )


def _counts(sequence: Sequence) -> tuple[int, ...]:
    """The counts of a request's row, from "num_output_tokens" on, of one of its sequences."""
    hits = sequence.cached_by_tier
    host, disk, store = (hits.get(HOST, 0), hits.get(DISK, 0), hits.get(STORE, 0)) if hits else (0, 0, 0)
    return (
        sequence.num_output_tokens, sequence.num_cached_tokens, sequence.num_recomputed_tokens,
        sequence.num_preemptions, sequence.num_swaps, sequence.num_partial_preemptions, host, disk, store,
    )  # fmt: skip
