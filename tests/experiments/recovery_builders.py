"""Simulated runs with known steps, as logs of vLLM would record them."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from engine.core.work import StepWork
from experiments.recovery.steps import Chunk, Step
from harness.config import RunConfig
from harness.measured import MeasuredRun
from harness.measured.measured_run import queued_times, series_table
from harness.runs.simulated import SimulatedEngine
from harness.runs.system import resolve
from harness.workload.arrivals import make_arrivals
from harness.workload.readers import load_trace
from harness.workload.trace import Trace
from simulator.costs.cost import CostModel
from simulator.system import System
from tests.harness.builders import config

EARLY = [
    "engine=sim", "scheduler=vllm_v0", "model=opt-13b", "device=a100-80gb", "cost=linear",
    "max_num_batched_tokens=65536",
]  # fmt: skip
RATES = ["device.memory_efficiency=0.8", "device.flops_efficiency=0.7"]  # that these runs were made up with


ANYONE = -1


class Uneven:
    """A cost model that adds noise to another one, and records the steps that it prices and their times.

    Steps take up to the share `noise` more or less, steps of 9 to 16 decodes `slow` times as long, and the 300th step
    `stall_ns` more. The chunks of recorded steps have `ANYONE` as their request: work does not name it.
    """

    def __init__(self, cost: CostModel, noise: float, slow: float = 1.0, stall_ns: int = 0) -> None:
        self._cost, self._noise, self._slow, self._stall_ns = cost, noise, slow, stall_ns
        self._rng = np.random.default_rng(1)
        self.steps: list[Step] = []
        self.times: list[int] = []

    def step_ns(self, work: StepWork) -> int:
        chunks = tuple(Chunk(ANYONE, *chunk) for chunk in work.chunks)
        self.steps.append(Step(work.num_decodes, work.num_context_tokens, work.num_squared_context_tokens, chunks))
        factor = 1 + self._rng.uniform(-self._noise, self._noise)
        if not chunks and 8 < work.num_decodes <= 16:
            factor *= self._slow
        stall = self._stall_ns if len(self.steps) == 300 else 0
        self.times.append(round(factor * self._cost.step_ns(work)) + stall)
        return self.times[-1]

    def decode_ns(self, work: StepWork, num_steps: int) -> NDArray[np.int64]:
        raise AssertionError


def served_run(settings: RunConfig, trace: Trace, cost: Uneven) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables of requests and steps of a simulation that `cost` prices."""
    arrivals = make_arrivals(trace, settings.arrival, np.random.default_rng(settings.seed))
    engine = SimulatedEngine(resolve(settings), trace, arrivals, cost)
    engine.run()
    served = engine.recorder.tables(trace, engine.unfinished())
    return served.requests, served.steps


def as_measured(settings: RunConfig, trace: Trace, requests: pd.DataFrame) -> tuple[System, MeasuredRun]:
    """The run that a log with `requests` records, and the system that simulates it."""
    sent = replace(trace, table=trace.table.assign(arrival_time=requests["arrival_time"].to_numpy()))
    return resolve(settings), MeasuredRun("", "", "", (), sent, requests, series_table({}), {}, ())


@functools.cache
def real_run(*overrides: str, noise: float = 0.02, slow: float = 1.0) -> tuple[System, MeasuredRun, Uneven]:
    """A run by vLLM's rules whose log has the times of a log of vLLM, and its steps."""
    settings = config(
        "engine=sim", "scheduler=vllm", "model=llama-3.1-8b", "device=h100-80gb", "engine.compress=false",
        "max_num_batched_tokens=1024", "trace.num_requests=60", "arrival.rate=25", "max_num_seqs=24", *RATES,
        *overrides,
    )  # fmt: skip
    trace = load_trace(settings.trace, seed=settings.seed)
    cost = Uneven(resolve(settings).cost_model(), noise, slow)
    trace = replace(trace, table=trace.table.assign(num_output_tokens=one_of_ten_ends_at_once))
    requests, steps = served_run(settings, trace, cost)
    seen = queued_times(requests["arrival_time"].to_numpy(), steps)
    noted = np.maximum.accumulate(seen + np.random.default_rng(2).uniform(40e-6, 280e-6, len(seen)))
    return *as_measured(settings, trace, requests.assign(queued_time=noted)), cost


@functools.cache
def early_run(*overrides: str, stall_ns: int = 0) -> tuple[System, MeasuredRun, Uneven]:
    """A run by an early vLLM's rules, as a client sees it, and its steps."""
    settings = config(*EARLY, *RATES, "engine.compress=false", "trace.num_requests=30", "arrival.rate=3", *overrides)
    trace, cost = (
        load_trace(settings.trace, seed=settings.seed),
        Uneven(resolve(settings).cost_model(), 0.02, stall_ns=stall_ns),
    )
    lengths = {
        "num_prompt_tokens": (8 * trace.table["num_prompt_tokens"]).clip(upper=1500),
        "num_output_tokens": one_of_ten_ends_at_once(trace.table).clip(upper=120),
    }
    trace = replace(trace, table=trace.table.assign(**lengths))
    requests, _ = served_run(settings, trace, cost)
    rng = np.random.default_rng(2)
    off = {name: rng.uniform(0.002, 0.004, len(requests)) for name in ("arrival", "first", "last")}
    sent = (requests["arrival_time"] - off["arrival"]).cummax()
    requests = requests.assign(
        arrival_time=sent,
        first_token_time=requests["first_token_time"] + off["first"],
        finish_time=requests["finish_time"] + np.where(requests["num_output_tokens"] > 1, off["last"], off["first"]),
    )
    since = requests[["arrival_time", "first_token_time", "finish_time"]] - sent.iloc[0]
    return *as_measured(settings, trace, requests.assign(**since)), cost


def one_of_ten_ends_at_once(table: pd.DataFrame) -> pd.Series[int]:
    return table["num_output_tokens"].where(table["request_id"] % 10 != 5, 1)
