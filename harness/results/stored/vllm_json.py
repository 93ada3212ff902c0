"""What `vllm bench serve --save-result --save-detailed` writes, of a run against a server, for tools that read that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from harness.results.columns import floats
from harness.results.tables import RunResult

VLLM_JSON = "vllm_bench.json"


def vllm_document(result: RunResult, summary: Mapping[str, Any], itls: Sequence[Sequence[float]]) -> dict[str, Any]:
    """The document; times in s, latencies of single requests from when they were sent.

    Args:
        itls: gaps between the tokens of each request, in s.
    """
    requests, config = result.requests, summary.get("config") or {}
    arrival, engine = config.get("arrival") or {}, config.get("engine") or {}
    lag = np.nan_to_num(floats(requests, "replay_lag"))
    start, ttft = floats(requests, "arrival_time") + lag, floats(requests, "ttft") - lag
    done = (requests["status"] == "finished").to_numpy()
    metrics = {key: value for key, value in summary.items() if isinstance(value, int | float) and key != "complete"}
    return {
        "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "openai-chat" if engine.get("api") == "chat" else "openai",
        "backend": "openai-chat" if engine.get("api") == "chat" else "openai",
        "label": "twinserve",
        "model_id": summary.get("model"),
        "tokenizer_id": engine.get("tokenizer") or summary.get("model"),
        "request_rate": arrival.get("rate", "inf"),
        "burstiness": arrival.get("burstiness", 1.0),
        "max_concurrency": arrival.get("concurrency"),
        **metrics,
        "input_lens": requests["num_prompt_tokens"].tolist(),
        "output_lens": requests["num_output_tokens"].tolist(),
        "ttfts": np.where(done, np.nan_to_num(ttft), 0.0).tolist(),
        "itls": [list(gaps) if is_done else [] for gaps, is_done in zip(itls, done, strict=True)],
        "start_times": np.nan_to_num(start).tolist(),
        "generated_texts": [""] * len(requests),
        "errors": requests["error"].fillna("unfinished").astype(str).mask(done, "").tolist(),
    }
