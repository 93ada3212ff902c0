"""Steps recovered from what a log of requests tells, against a run whose steps are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from engine.plan import StepPlan
from experiments import recovered_steps
from experiments.recovered_replay import replay
from experiments.recovered_steps import Chunk, NoWayError, Span, Step, recover
from experiments.request_log import LogError, read_log
from experiments.vllm_steps import errors
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
    trace = replace(trace, table=trace.table.assign(num_output_tokens=one_of_ten_ends_at_once))
    arrivals = make_arrivals(trace, settings.arrival, np.random.default_rng(settings.seed))
    cost = Uneven(cost_model(settings), noise, slow)
    engine = SimulatedEngine(settings, trace, arrivals, cost)
    engine.run()
    served = engine.recorder.tables(trace, engine.unfinished())
    sent = served.requests["arrival_time"].to_numpy()
    seen = queued_times(sent, served.steps)
    noted = np.maximum.accumulate(seen + np.random.default_rng(2).uniform(40e-6, 280e-6, len(seen)))
    requests = served.requests.assign(queued_time=noted)
    sent_trace = replace(trace, table=trace.table.assign(arrival_time=sent))
    settings = settings.model_copy(update={"arrival": config("arrival=trace").arrival})
    return settings, MeasuredRun("", "", "", (), sent_trace, requests, series_table({}), {}, ()), cost


def one_of_ten_ends_at_once(table: pd.DataFrame) -> pd.Series[int]:
    return table["num_output_tokens"].where(table["request_id"] % 10 != 5, 1)


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
    log = read_log(run)
    spans, margin = recover(settings, run, log, SIZES)
    assert steps_of(spans) == cost.steps and margin > 1
    late = np.abs([*replay(settings, run, log, spans).values()])
    assert late.max() <= 300_000  # when a request reached an idle engine is not known better
    assert np.median(late) <= 1
    ends = np.cumsum([span.time_ns for span in spans])
    served_s = run.requests["finish_time"].max() - run.requests["queued_time"].min()
    assert ends[-1] == pytest.approx(1e9 * served_s, abs=1e6)


def test_prices_that_are_far_off_for_some_decodes_are_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, run, cost = real_run("max_num_seqs=16", "arrival.rate=60", slow=1.2)
    with monkeypatch.context() as patched, pytest.raises(NoWayError):
        patched.setattr(recovered_steps, "_MOST_PASSES", 1)
        recover(settings, run, read_log(run), SIZES)
    assert steps_of(recover(settings, run, read_log(run), SIZES).spans) == cost.steps


def test_a_log_that_no_steps_agree_with_is_refused() -> None:
    settings, run, _ = real_run()
    shorter = run.requests["num_output_tokens"].to_numpy().copy()
    shorter[shorter.argmax()] //= 2  # others that decode beside it have as many steps as before
    trace = replace(run.trace, table=run.trace.table.assign(num_output_tokens=shorter))
    run = replace(run, trace=trace, requests=run.requests.assign(num_output_tokens=shorter))
    with pytest.raises(NoWayError, match="no steps agree with the log up to its moment"):
        recover(settings, run, read_log(run), SIZES)


def test_logs_that_do_not_tell_enough_are_refused() -> None:
    settings, run, _ = real_run("trace.num_requests=5")
    without = replace(run, requests=run.requests.assign(queued_time=np.nan))
    with pytest.raises(LogError, match="no queued_time of some requests"):
        read_log(without)
    turned = replace(run, requests=run.requests.assign(queued_time=run.requests["queued_time"].to_numpy()[::-1]))
    with pytest.raises(LogError, match="in another order than they came"):
        read_log(turned)
    with pytest.raises(LogError, match="5 requests are refused or cut short in the simulation"):
        recover(settings.model_copy(update={"max_model_len": 20}), run, read_log(run), SIZES)
    with pytest.raises(LogError, match="by the rules of scheduler=vllm"):
        recover(config("scheduler=mixed"), run, read_log(run), SIZES)


def test_what_the_search_does_not_know_shows_in_the_replay() -> None:
    """Requests that wait for KV blocks: no steps are found, or the core, which has blocks, does otherwise."""
    settings, run, _ = real_run("num_blocks=200", "trace.num_requests=30")
    log = read_log(run)
    try:
        spans, _ = recover(settings, run, log, SIZES)
    except NoWayError:
        return
    assert np.abs([*replay(settings, run, log, spans).values()]).max() > 1_000_000


def test_other_decisions_of_the_core_show_in_its_replay() -> None:
    settings, run, _ = real_run()
    log = read_log(run)
    spans, _ = recover(settings, run, log, SIZES)
    fewer = settings.model_copy(update={"max_num_seqs": settings.max_num_seqs - 1})
    assert np.abs([*replay(fewer, run, log, spans).values()]).max() > 1_000_000


def test_errors_are_those_of_spans_of_one_kind() -> None:
    decodes, more = Step(3, 300, 30_000, ()), Step(5, 500, 50_000, ())
    prompt = Step(3, 303, 31_000, (Chunk(7, 0, 300, True),))
    spans = [
        Span((decodes, decodes), 20_000_000),
        Span((decodes,), 12_000_000),
        Span((decodes, more), 50_000_000),  # padded to 4 and to 8
        Span((decodes, prompt), 40_000_000),
        Span((), 5_000_000),
    ]
    found = errors(spans, lambda step: 9e6 if step is decodes else 30e6, (1, 2, 4, 8)).to_dict("records")
    assert found == [
        {"kind": "decode", "tokens_up_to": 4, "count": 3, "measured_ms": 32.0, "priced_ms": 27.0,
         "error_ms": -1.667, "error_pct": -15.625},
        {"kind": "with prompts", "tokens_up_to": 512, "count": 1, "measured_ms": 40.0, "priced_ms": 39.0,
         "error_ms": -1.0, "error_pct": -2.5},
    ]  # fmt: skip


def test_requests_are_taken_in_with_the_tokens_before_or_as_much_earlier_than_noted_as_is_usual() -> None:
    _, run, _ = real_run("trace.num_requests=3")
    times = {
        "queued_time": [1.00015, 2.00015, 3.5],
        "first_token_time": [2.0, 3.0, 4.0],
        "finish_time": [3.0, 4.0, 5.0],
    }
    times["first_scheduled_time"] = times["queued_time"]
    log = read_log(replace(run, requests=run.requests.assign(**times)))
    assert log.seen_ns.tolist() == [0, 1_000_000_000, 2_499_850_000]
    assert [moment.time_ns for moment in log.moments] == [0, 10**9, 2 * 10**9, 2_499_850_000, 3 * 10**9, 4 * 10**9]
    assert [moment.num_seen for moment in log.moments] == [1, 2, 2, 3, 3, 3]
    assert log.moments[2].tokens == {(0, True), (1, False)}
