"""Requests that a run refused or cut short: how many, why, and what to set so that they are served.

A request is cut short when prompt and output reach the longest sequence that there may be. A run with such requests
says nothing on a system that serves them: it is marked wherever a run is shown, and they miss every SLO.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.results.tables import Rows, RunResult

HEADING = "NOT ALL SERVED"
_PROMPT = re.compile(r"(?<=a prompt of )\d+(?= tokens)")


def served(requests: Rows) -> npt.NDArray[np.bool_]:
    """bool[n]: which requests finished with all the tokens that were asked for."""
    return (requests["status"] == "finished").to_numpy() & ~_are_short(requests)


def num_cut(requests: Rows) -> int:
    """How many requests finished with fewer tokens than were asked for."""
    return int(((requests["status"] == "finished").to_numpy() & _are_short(requests)).sum())


def unserved_text(summary: Mapping[Any, Any]) -> str:
    """Such as `23 of 40 requests rejected, 17 cut short`; empty where all were served.

    Of a run that was not ended early, unfinished requests are told, too: its servers have come to a standstill.
    """
    words = {"rejected": "rejected", "truncated": "cut short"}
    if summary.get("complete"):
        words["unfinished"] = "unfinished"
    counts = {word: summary.get(key) for key, word in words.items()}
    parts = [f"{_count(number)} {word}" for word, number in counts.items() if number and not math.isnan(number)]
    if not parts:
        return ""
    number, _, word = parts[0].partition(" ")
    return ", ".join([f"{number} of {_count(summary.get('num_prompts') or 0)} requests {word}", *parts[1:]])


def notes_on(result: RunResult, requests: Rows) -> list[str]:
    """Why `requests`, those that count, were refused or cut short, and what to set."""
    reasons: dict[str, list[str]] = {}
    for error in requests["error"].to_numpy()[(requests["status"] == "rejected").to_numpy()]:
        reasons.setdefault(_PROMPT.sub("…", str(error)), []).append(str(error))
    limit = _limit_text(result)
    found = []
    for kind, errors in reasons.items():
        example = Counter(errors).most_common(1)[0][0]
        such_as = "such as " if len(set(errors)) > 1 else ""
        advice = f"; {limit}" if "exceed the limit" in kind and limit else ""
        found.append(f"{_requests(len(errors))} rejected: {such_as}{example}{advice}")
    if cut := num_cut(requests):
        found.append(f"{_requests(cut)} cut short at the longest sequence that there may be; {limit}".rstrip("; "))
    left = int((requests["status"] == "unfinished").to_numpy().sum())
    if left and result.complete:
        found.append(f"{_requests(left)} left unfinished: the run came to a standstill: they wait for ever")
    return found


def _requests(number: int) -> str:
    return "1 request was" if number == 1 else f"{number:,} requests were"


def _are_short(requests: Rows) -> npt.NDArray[np.bool_]:
    return requests["num_output_tokens"].to_numpy() < requests["num_requested_tokens"].to_numpy()


def _limit_text(result: RunResult) -> str:
    """What limits the length of a sequence, and the keys that move it; empty where the run does not tell."""
    config = result.meta.get("config") or {}
    given = config.get("max_model_len")
    longest = given or (config.get("model") or {}).get("max_position_embeddings")
    pool = result.pool_blocks * result.block_size
    if longest is None or pool < longest:
        if not pool > 0:
            return ""
        keys = "num_blocks, gpu_memory_utilization or tensor_parallel_size"
        return f"the KV pool of a server holds {pool:,.0f} tokens: a larger {keys} gives it more"
    if given:
        return f"max_model_len={given} is the limit: set a larger one, or leave the long requests out of the trace"
    return f"the model has {longest:,} positions, model.max_position_embeddings: leave longer requests out of the trace"


def _count(number: float) -> str:
    """A number of requests; means over repetitions have decimals."""
    return f"{number:,.0f}" if number == round(number) else f"{number:,.1f}"
