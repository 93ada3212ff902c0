"""Steps recovered from what a log of requests tells, against a run whose steps are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.plan import StepPlan
from experiments import recovered_steps
from experiments.recovered_steps import NoWayError, Span, Step, recover, replay
from harness.arrivals import make_arrivals
from harness.config import RunConfig
from harness.measured import MeasuredRun
from harness.measured.measured_run import queued_times, series_table
from harness.readers import load_trace
from harness.simulated import SimulatedEngine, cost_model
from simulator.cost import CostModel
from tests.harness.test_run import config

SIZES = (1, 2, 4, 8, 16, 24, 32)


class Uneven:
    """A cost model whose steps take up to `noise` more or less, and decodes of 9 to 16 `slow` times as long; it keeps
    what it was asked for."""

    def __init__(self, cost: CostModel, noise: float, slow: float) -> None:
        self._cost, self._noise, self._slow = cost, noise, slow
        self._rng = np.random.default_rng(1)
        self.steps: list[Step] = []
        self.times: list[int] = []

    def step_ns(self, plan: StepPlan) -> int:
        chunks = tuple(recovered_steps.Chunk(chunk.sequence.request_id, *chunk[1:]) for chunk in plan.prefills)
        self.steps.append(Step(plan.num_decodes, plan.num_context_tokens, plan.num_squared_context_tokens, chunks))
        factor = 1 + self._rng.uniform(-self._noise, self._noise)
        if not chunks and 8 < plan.num_decodes <= 16:
            factor *= self._slow
        self.times.append(round(factor * self._cost.step_ns(plan)))
        return self.times[-1]

    def decode_ns(self, plan: StepPlan, num_steps: int) -> NDArray[np.int64]:
        raise AssertionError


def real_run(*overrides: str, noise: float = 0.02, slow: float = 1.0) -> tuple[RunConfig, MeasuredRun, Uneven]:
    """A run of vLLM's rules, of which the log tells what vLLM's would, and what its steps were."""
    settings = config(
        "engine=sim", "scheduler=vllm", "model=llama-3.1-8b", "device=h100-80gb", "engine.compress=false",
        "max_num_batched_tokens=1024", "trace.num_requests=60", "arrival.rate=25", "max_num_seqs=24", *overrides,
    )  # fmt: skip
    trace = load_trace(settings.trace, seed=settings.seed)
    arrivals = make_arrivals(trace, settings.arrival, np.random.default_rng(settings.seed))
    cost = Uneven(cost_model(settings), noise, slow)
    engine = SimulatedEngine(settings, trace, arrivals, cost)
    engine.run()
    served = engine.recorder.tables(trace, engine.unfinished())
    sent = served.requests["arrival_time"].to_numpy()
    requests = served.requests.assign(queued_time=queued_times(sent, served.steps))
    sent_trace = replace(trace, table=trace.table.assign(arrival_time=sent))
    settings = settings.model_copy(update={"arrival": config("arrival=trace").arrival})
    return settings, MeasuredRun("", "", "", (), sent_trace, requests, series_table({}), {}, ()), cost


def steps_of(spans: list[Span]) -> list[Step]:
    return [step for span in spans for step in span.steps]


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["max_num_seqs=8"],
        ["trace=shared_prefix", "trace.num_requests=40"],
        ["arrival.rate=1", "trace.num_requests=9"],  # idle at times
    ],
)
def test_all_steps_are_found_and_the_core_repeats_them(overrides: list[str]) -> None:
    settings, run, cost = real_run(*overrides)
    requests, spans = recover(settings, run, SIZES)
    assert steps_of(spans) == cost.steps
    assert np.abs(replay(settings, run, requests, spans)).max() <= 1
    ends = np.cumsum([span.time_ns for span in spans])
    assert ends[-1] == pytest.approx(1e9 * (run.requests["finish_time"].max() - run.requests["queued_time"].min()))


def test_prices_that_are_far_off_for_some_decodes_are_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, run, cost = real_run("max_num_seqs=16", "arrival.rate=60", slow=1.2)
    with monkeypatch.context() as patched, pytest.raises(NoWayError):
        patched.setattr(recovered_steps, "_MOST_PASSES", 1)
        recover(settings, run, SIZES)
    _, spans = recover(settings, run, SIZES)
    assert steps_of(spans) == cost.steps


def test_a_log_that_no_steps_agree_with_is_refused() -> None:
    settings, run, _ = real_run()
    shorter = run.requests["num_output_tokens"].to_numpy().copy()
    shorter[7] //= 2  # others that decode beside it have as many steps as before
    with pytest.raises(NoWayError, match="no steps agree with the log up to its moment"):
        recover(settings, replace(run, requests=run.requests.assign(num_output_tokens=shorter)), SIZES)


def test_other_decisions_of_the_core_show_in_its_replay() -> None:
    settings, run, _ = real_run()
    requests, spans = recover(settings, run, SIZES)
    fewer = settings.model_copy(update={"max_num_seqs": settings.max_num_seqs - 1})
    assert np.abs(replay(fewer, run, requests, spans)).max() > 1_000_000
    assert np.abs(replay(settings, run, requests, spans)).max() <= 1
