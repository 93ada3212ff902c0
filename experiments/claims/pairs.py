"""The tiny model in two real engines, of which one plans ahead and the other does not: short runs in turn."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
import yaml

from engine.api.llm_engine import LLMEngine
from engine.core.sequence import Request
from engine.engine_config import EngineConfig
from engine.models.model_config import ModelConfig
from engine.runner.executors.executor import LocalExecutor
from engine.sampling_params import SamplingParams
from experiments import ROOT


def paired_runs(seats: int, num_pairs: int) -> list[dict[str, Any]]:
    """Pairs of short runs, one after the other in turn, so that other work on the machine meets both alike.

    The model has one thread, so that a core is left to the scheduler.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    engines = {way: _engine(seats, ahead=way == "ahead") for way in ("in_turn", "ahead")}
    rows = []
    for number in range(-1, num_pairs):
        ways = list(engines)[:: 1 if number % 2 else -1]
        row = {way: _serve(engines[way], 2 * seats, number + 1) for way in ways}
        if number >= 0:  # the first pair warms up
            rows.append({"seats": seats, **row})
    for engine in engines.values():
        engine.close()
    torch.set_num_threads(num_threads)
    return rows


def _engine(seats: int, *, ahead: bool) -> LLMEngine:
    shape = ModelConfig.from_shape(yaml.safe_load((ROOT / "conf/model/tiny.yaml").read_text()))
    config = EngineConfig(
        max_num_seqs=seats, max_num_batched_tokens=512, num_blocks=32 * seats, max_lookahead_steps=1,
        load_format="random", async_scheduling=ahead,
    )  # fmt: skip
    return LLMEngine(config, LocalExecutor(config, shape), max_model_len=1024)


def _serve(engine: LLMEngine, num_requests: int, seed: int) -> dict[str, float]:
    """Serve a backlog of prompts of 40 tokens and outputs of 8 to 48; the times are of a step, in ms."""
    rng = np.random.default_rng(seed)
    for number in range(num_requests):
        tokens, length = rng.integers(0, 1000, 40).tolist(), int(rng.integers(8, 49))
        params = SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True)
        engine.add(Request(number, len(tokens), length, token_ids=tokens), params)
    start = time.perf_counter()
    reports = []
    while (report := engine.step(time.perf_counter_ns())) is not None:
        reports.append(report)
    seconds = time.perf_counter() - start
    host_ns = sum(each.times.schedule_ns + each.times.prepare_ns for each in reports)
    return {"seconds": seconds, "steps": len(reports), "host_ms": 1e-6 * host_ns / len(reports)}
