"""What `vllm bench serve --save-result --save-detailed` writes, of a run against a server, for tools that read that."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from harness.results.columns import floats
from harness.results.tables import Floats, RunResult

VLLM_JSON = "vllm_bench.json"
_PLAIN: Mapping[str, Callable[[Floats], Any]] = {"mean": np.mean, "median": np.median, "std": np.std}


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
    for name, latency in (("ttft", ttft), ("e2el", floats(requests, "e2el") - lag)):
        metrics |= _statistics(metrics, name, 1e3 * latency[done])
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


def _statistics(metrics: Mapping[str, Any], name: str, latencies_ms: Floats) -> dict[str, float]:
    """The statistics of a latency that `metrics` has, of these values: there it counts from the intended arrival."""
    known = [match[1] for key in metrics if (match := re.fullmatch(rf"(mean|median|std|p[\d.]+)_{name}_ms", key))]
    return {f"{each}_{name}_ms": _statistic(each, latencies_ms) for each in known if len(latencies_ms)}


def _statistic(name: str, values: Floats) -> float:
    if name in _PLAIN:
        return float(_PLAIN[name](values))
    return float(np.percentile(values, float(name[1:])))
