"""per_request_lifecycle_metrics.json of inference-perf: a list of requests (`RequestLifecycleMetric` of 0.7)."""

from __future__ import annotations

from typing import Any

from harness.results.exports.sent import Sent


def request(each: Sent) -> dict[str, Any]:
    """One request; without gaps of its own, `output_token_times` has its first and its last token."""
    usage = {"prompt_tokens": each.num_prompt_tokens, "completion_tokens": each.num_output_tokens}
    response = {"output_tokens": each.num_output_tokens, "server_usage": usage, "response_chunks": []}
    times = [] if each.error else each.token_times_s
    return {
        "stage_id": 0,
        "session_id": None if each.session is None else str(each.session),
        "scheduled_time": each.due_s,
        "start_time": each.start_s,
        "end_time": each.end_s,
        "request": "",
        "response": "",
        "info": {
            "request_metrics": {"text": {"input_tokens": each.num_prompt_tokens}},
            "response_metrics": {**response, "chunk_times": times, "output_token_times": times},
        },
        "error": None if each.error is None else {"error_type": "error", "error_msg": each.error},
    }
