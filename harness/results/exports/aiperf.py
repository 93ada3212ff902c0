"""profile_export.jsonl of AIPerf: a line for each request (`MetricRecordInfo` of aiperf 0.13)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from harness.results.exports.sent import Sent


def lines(requests: Sequence[Sent]) -> Iterator[dict[str, Any]]:
    for place, each in enumerate(requests):
        metadata = {
            "session_num": place if each.session is None else each.session,
            "x_request_id": str(each.number),
            "conversation_id": None if each.session is None else str(each.session),
            "turn_index": each.turn,
            "request_start_ns": round(each.start_s * 1e9),
            "request_end_ns": round(each.end_s * 1e9),
            "worker_id": "twinserve",
            "record_processor_id": "twinserve",
            "benchmark_phase": "profiling",
            "was_cancelled": False,
        }
        failed = None if each.error is None else {"code": None, "type": "Error", "message": each.error}
        yield {"metadata": metadata, "metrics": {} if each.error else _metrics(each), "error": failed}


def _metrics(each: Sent) -> dict[str, Any]:
    found = {
        "time_to_first_token": (1e3 * each.ttft_s, "ms"),
        "request_latency": (1e3 * each.latency_s, "ms"),
        "input_sequence_length": (each.num_prompt_tokens, "tokens"),
        "output_sequence_length": (each.num_output_tokens, "tokens"),
    }
    if each.itl_s is not None:
        found["inter_token_latency"] = (1e3 * each.itl_s, "ms")
    return {name: {"value": value, "unit": unit} for name, (value, unit) in found.items()}
