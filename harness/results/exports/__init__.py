"""Results in the formats of other load generators, for tools that read those: `exports=[guidellm,llm_d]`.

    guidellm          guidellm.json: a report of GuideLLM, schema version 2, as far as its requests and latencies go
    aiperf            profile_export.jsonl of AIPerf
    inference_perf    per_request_lifecycle_metrics.json of inference-perf
    llm_d             llm_d_report.yaml: llm-d's benchmark report, version 0.2

`harness.measured` reads all of them. As in these tools, the clock of a request starts when it is sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from engine.documents import yaml_text
from harness.results.exports import aiperf, guidellm, inference_perf, llm_d
from harness.results.exports.sent import sent_requests
from harness.results.tables import RunResult


def export(name: str, result: RunResult, summary: Mapping[str, Any], ended_s: float) -> tuple[str, str]:
    """The name and the text of a file.

    Args:
        name: guidellm, aiperf, inference_perf or llm_d.
        ended_s: when the run ended, since 1970.
    """
    started_s = ended_s - float(summary.get("run_time_s") or 0.0)
    if name == "llm_d":
        return "llm_d_report.yaml", yaml_text(llm_d.document(result.requests, summary, started_s, ended_s))
    requests = sent_requests(result, started_s)
    if name == "aiperf":
        return "profile_export.jsonl", "".join(json.dumps(each) + "\n" for each in aiperf.lines(requests))
    if name == "guidellm":
        return "guidellm.json", json.dumps(guidellm.document(requests, summary, started_s, ended_s), indent=1)
    return "per_request_lifecycle_metrics.json", json.dumps([inference_perf.request(each) for each in requests])
