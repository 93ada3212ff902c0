"""The row of a request that has ended, or been given up."""

from __future__ import annotations

from struct import Struct

from engine.core.kv.tiers.shared_store import STORE
from engine.core.kv.tiers.tier import DISK, HOST
from engine.core.sequence import Request
from harness.record.request_times import UNSET

REQUEST_COLUMNS = (
    "row", "status", "arrival_ns", "first_scheduled_ns", "first_token_ns", "finish_ns", "num_output_tokens",
    "num_cached_tokens", "num_recomputed_tokens", "num_preemptions", "num_swaps", "num_partial_preemptions",
    "num_host_cached_tokens", "num_disk_cached_tokens", "num_store_cached_tokens",
)  # fmt: skip
_PACK = Struct(f"{len(REQUEST_COLUMNS)}q").pack  # faster than to extend an array by a tuple


def request_row(request: Request, status: int) -> bytes:
    """`REQUEST_COLUMNS` of a request, as int64; the counts are those of its sequences together."""
    output = cached = recomputed = preemptions = swaps = partial = host = disk = store = 0
    for sequence in request.sequences:
        output += sequence.num_output_tokens
        cached += sequence.num_cached_tokens
        recomputed += sequence.num_recomputed_tokens
        preemptions += sequence.num_preemptions
        swaps += sequence.num_swaps
        partial += sequence.num_partial_preemptions
        if hits := sequence.cached_by_tier:
            host += hits.get(HOST, 0)
            disk += hits.get(DISK, 0)
            store += hits.get(STORE, 0)
    scheduled, first, finish = request.first_scheduled_time, request.first_token_time, request.finish_time
    return _PACK(
        request.request_id, status, request.arrival_time, UNSET if scheduled is None else scheduled,
        UNSET if first is None else first, UNSET if finish is None else finish,
        output, cached, recomputed, preemptions, swaps, partial, host, disk, store,
    )  # fmt: skip
