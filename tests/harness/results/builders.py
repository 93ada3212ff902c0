"""Results of a toy engine: the tables that metrics, plots and reports read, and the token times they come from."""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.config import MetricsConfig
from harness.results.metrics import summarize
from harness.results.stored.files import write_results
from harness.results.tables import Gaps, RunResult

BLOCK_SIZE = 16
META: dict[str, Any] = {
    "engine": "sim",
    "simulated": True,
    "model": "qwen3-8b",
    "device": "h100-80gb",
    "trace": "sharegpt",
    "arrival": "poisson",
    "policy": "mixed",
    "notes": ("lengths sampled from fitted distributions, not the data set",),
    "bad_rows": {},
    "config": {"block_size": 16, "max_num_seqs": 128, "scheduler": {"policy": "mixed"}, "seed": 0},
    "environment": {"python": "3.12.1", "git_revision": "0123abc", "git_dirty": False},
}


@dataclass(eq=False)
class ToyRequest:
    """One request and everything that happened to it; times in s."""

    arrival: float
    prompt: int
    output: int
    cached: int = 0
    status: str = "unfinished"
    first_scheduled: float = np.nan
    tokens: list[float] = field(default_factory=list)
    preemptions: int = 0
    recomputed: int = 0
    gave_way: list[list[float]] = field(default_factory=list)  # from when until when

    @property
    def blocks(self) -> int:
        return -(-(self.prompt + len(self.tokens)) // BLOCK_SIZE)

    def row(self, number: int) -> dict[str, Any]:
        first, last = (self.tokens[0], self.tokens[-1]) if self.tokens else (np.nan, np.nan)
        done = self.status == "finished"
        count = len(self.tokens)
        return {
            "request_id": number,
            "status": self.status,
            "error": "prompt longer than the pool" if self.status == "rejected" else None,
            "arrival_time": self.arrival,
            "replay_lag": 0.0,
            "first_scheduled_time": self.first_scheduled,
            "first_token_time": first,
            "finish_time": last if done else np.nan,
            "num_sequences": 1,
            "num_prompt_tokens": self.prompt,
            "num_output_tokens": count,
            "num_requested_tokens": self.output,
            "num_cached_tokens": self.cached if not np.isnan(self.first_scheduled) else 0,
            "num_recomputed_tokens": self.recomputed,
            "num_preemptions": self.preemptions,
            "num_host_cached_tokens": 0,
            "num_disk_cached_tokens": 0,
            "parked_time": 0.0,
            "num_swaps": 0,
            "num_partial_preemptions": 0,
            "ttft": first - self.arrival,
            "tpot": (last - first) / (count - 1) if count > 1 else np.nan,
            "e2el": last - self.arrival if done else np.nan,
            "queue_time": self.first_scheduled - self.arrival,
        }


STEP_COLUMNS = [
    "step",
    "start_time",
    "duration",
    "num_prefill_seqs",
    "num_decode_seqs",
    "num_prefill_tokens",
    "num_context_tokens",
    "num_running",
    "num_waiting",
    "num_used_blocks",
    "num_saved_blocks",
    "num_preempted",
    "num_first_admitted_tokens",
    "num_cached_tokens",
]


def run_toy_engine(
    requests: list[ToyRequest], num_blocks: int = 4000, max_num_seqs: int = 128, until_s: float = np.inf
) -> RunResult:
    """Serve the requests in order of arrival; preempts the newest when blocks run out; stops early at `until_s`."""
    now = 0.0
    steps: list[tuple[float, ...]] = []
    pending = deque(sorted(requests, key=lambda request: request.arrival))
    waiting: deque[ToyRequest] = deque()
    running: list[ToyRequest] = []
    while (pending or waiting or running) and now < until_s:
        if not waiting and not running:
            now = max(now, pending[0].arrival)
        while pending and pending[0].arrival <= now:
            request = pending.popleft()
            if request.prompt + request.output > num_blocks * BLOCK_SIZE:
                request.status = "rejected"
            else:
                waiting.append(request)
        if not waiting and not running:
            continue
        used = sum(request.blocks for request in running)
        preempted = 0
        while len(running) > 1 and used + len(running) > num_blocks:
            victim = running.pop()
            used -= victim.blocks
            victim.preemptions += 1
            victim.gave_way.append([now, np.inf])
            waiting.appendleft(victim)
            preempted += 1
        admitted: list[ToyRequest] = []
        tokens = first_tokens = cached_tokens = 0
        while waiting and not preempted and len(running) + len(admitted) < max_num_seqs:
            request = waiting[0]
            if used + request.blocks + len(running) > num_blocks or tokens > 4096:
                break
            waiting.popleft()
            if np.isnan(request.first_scheduled):
                request.first_scheduled = now
                first_tokens += request.prompt
                cached_tokens += request.cached
                tokens += request.prompt - request.cached
            else:
                request.gave_way[-1][1] = now
                request.recomputed += request.prompt + len(request.tokens)
                tokens += request.prompt + len(request.tokens)
            used += request.blocks
            admitted.append(request)
        context = sum(request.prompt + len(request.tokens) for request in running)
        duration = 0.006 + 2.2e-5 * tokens + 3e-8 * context + 2e-5 * len(running)
        steps.append(
            (len(steps), now, duration, len(admitted), len(running), tokens, context, len(running) + len(admitted))
            + (len(waiting), used, used // 3, preempted, first_tokens, cached_tokens)
        )
        now += duration
        running += admitted
        for request in running:
            request.tokens.append(now)
            if len(request.tokens) == request.output:
                request.status = "finished"
        running = [request for request in running if request.status != "finished"]
    return tables(requests, steps, num_blocks, complete=not (pending or waiting or running))


def tables(requests: list[ToyRequest], steps: list[tuple[float, ...]], num_blocks: int, complete: bool) -> RunResult:
    columns = list(ToyRequest(0.0, 1, 1).row(0))
    table = pd.DataFrame([request.row(number) for number, request in enumerate(requests)], columns=columns)
    table["status"] = table["status"].astype("category")
    integers = ["request_id", *[name for name in columns if name.startswith("num_")]]
    table[integers] = table[integers].astype("int64")
    floats = [name for name in columns if name not in integers and name not in ("status", "error")]
    table[floats] = table[floats].astype("float64")
    step_table = pd.DataFrame(steps, columns=STEP_COLUMNS).assign(num_drafted_tokens=0, num_accepted_tokens=0)
    integer_columns = [name for name in STEP_COLUMNS if name not in ("start_time", "duration")]
    step_table = step_table.assign(num_blocks_out=0, num_blocks_in=0, transfer_time=0.0)
    step_table = step_table.assign(num_blocks_to_disk=0, num_blocks_from_disk=0)
    step_table = step_table.astype(dict.fromkeys(integer_columns, "int64") | {"start_time": float, "duration": float})
    step_table["num_kv_tokens"] = step_table["num_used_blocks"] * BLOCK_SIZE * 3 // 4
    step_table["num_reserved_slots"] = step_table["num_used_blocks"] * BLOCK_SIZE // 5
    step_table["num_external_slots"] = step_table["num_waiting"] * 7
    gaps = np.concatenate([np.zeros(0), *(np.diff(request.tokens) for request in requests)])
    pooled = Gaps(gaps, np.ones(len(gaps), dtype=np.int64))
    return RunResult(table, step_table, pooled, num_blocks, BLOCK_SIZE, complete, dict(META))


def heavy_tailed_requests(count: int, rate: float, seed: int = 0, hit_share: float = 0.0) -> list[ToyRequest]:
    """Poisson arrivals with lognormal prompts; `hit_share` of them find half of their prompt in the cache."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, count))
    prompts = np.clip(rng.lognormal(5.0, 1.2, count), 1, 8000).astype(int)
    outputs = np.clip(rng.weibull(1.3, count) * 200, 1, 1000).astype(int)
    cached = np.where(rng.random(count) < hit_share, prompts // 2 // BLOCK_SIZE * BLOCK_SIZE, 0)
    columns = (arrivals.tolist(), prompts.tolist(), outputs.tolist(), cached.tolist())
    return [ToyRequest(*values) for values in zip(*columns, strict=True)]


def store(folder: Path, config: dict[str, Any], until_s: float = np.inf, **meta: Any) -> Path:
    """A result folder of the toy engine with this configuration."""
    result = run_toy_engine(heavy_tailed_requests(40, 20), num_blocks=300, until_s=until_s)
    merged = {**copy.deepcopy(META), **meta, "config": config}
    result = replace(result, meta=merged, block_size=config.get("block_size", 16))
    write_results(result, summarize(result, MetricsConfig()), folder)
    return folder
