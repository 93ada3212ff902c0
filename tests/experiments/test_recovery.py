"""Steps recovered from what a log of requests tells, against a run whose steps are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.recovery import mixed
from experiments.recovery.constants import fit_to_recovered_steps
from experiments.recovery.path_search import Tolerance
from experiments.recovery.recovered_run import RecoveredRun, recover, summary
from experiments.recovery.replay import replay
from experiments.recovery.request_log import LogError, read_client_log, read_engine_log
from experiments.recovery.steps import Step, priced_by
from harness.runs import fitted
from harness.runs.system import resolve
from tests.experiments.recovery_builders import ANYONE, EARLY, RATES, early_run, real_run
from tests.harness.builders import config
from tests.harness.measured_builders import write_distserve

# Requests wait for KV blocks, but none is preempted.
CROWDED = ["arrival.rate=20", "num_blocks=900", "scheduler.watermark=0.25"]


def steps_of(found: RecoveredRun) -> list[Step]:
    """The recovered steps; their chunks name no request, as those of `Uneven`."""
    steps = [step for span in found.spans for step in span.steps]
    return [step._replace(chunks=tuple(chunk._replace(request=ANYONE) for chunk in step.chunks)) for step in steps]


def largest_ms(found: RecoveredRun) -> float:
    return max(found.largest_deviations_ms().values())


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["max_num_seqs=8"],
        ["trace=shared_prefix", "trace.num_requests=40"],
        pytest.param(["arrival.rate=1", "trace.num_requests=9"], marks=pytest.mark.slow),  # idle at times
    ],
)
def test_all_steps_are_found_and_the_core_repeats_them(overrides: list[str]) -> None:
    system, run, cost = real_run(*overrides)
    found = recover(system, run)
    assert steps_of(found) == cost.steps and found.margin > 1
    assert largest_ms(found) <= 0.3  # when a request reached an idle engine is not known better
    assert np.median(np.abs([*found.late.values()])) <= 1
    ends = np.cumsum([span.time_ns for span in found.spans])
    served_s = run.requests["finish_time"].max() - run.requests["queued_time"].min()
    assert ends[-1] == pytest.approx(1e9 * served_s, abs=1e6)


@pytest.mark.parametrize(
    ("overrides", "padding"),
    [
        pytest.param([], 256, marks=pytest.mark.slow),
        (["arrival.rate=0.5", "trace.num_requests=9"], 256),  # idle at times
        (CROWDED, 256),
        (["arrival.rate=20", "trace.num_requests=15", "scheduler.max_padding=2000"], 2000),
    ],
)
def test_all_steps_of_an_early_vllm_are_found_and_the_core_repeats_them(overrides: list[str], padding: int) -> None:
    system, run, cost = early_run(*overrides)
    found = recover(system, run)
    assert steps_of(found) == cost.steps
    assert largest_ms(found) < 5  # within which clients see the tokens of a step
    sizes = [[chunk.num_tokens for chunk in step.chunks] for step in cost.steps if len(step.chunks) > 1]
    assert all(max(each) * len(each) - sum(each) <= padding for each in sizes)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(18))
def test_all_steps_of_other_runs_are_found(seed: int) -> None:
    rate = [0.5, 1, 2, 4, 8, 20][seed % 6]
    pool = CROWDED[1:] if seed % 3 == 0 else []
    for system, run, cost in (
        early_run(f"seed={seed}", f"arrival.rate={rate}", *pool),
        real_run(f"seed={seed}", f"arrival.rate={5 * rate}"),
    ):
        found = recover(system, run)
        assert steps_of(found) == cost.steps and largest_ms(found) < 5


@pytest.mark.parametrize(
    "change", ["num_blocks=880", pytest.param("scheduler.max_padding=0", marks=pytest.mark.slow), "max_num_seqs=12"]
)
def test_other_decisions_than_those_of_an_early_vllm_show_in_the_replay(change: str) -> None:
    _, run, _ = early_run(*CROWDED)
    other, _, _ = early_run(*CROWDED, change)
    assert largest_ms(recover(other, run)) > 20


@pytest.mark.slow
def test_steps_of_an_early_vllm_are_found_whatever_the_cost_model_says() -> None:
    """The search fits prices of its own: with constants that are far off it finds the same."""
    system, run, cost = early_run()
    off = replace(system, device=replace(system.device, memory_bandwidth=1e13))
    found = recover(off, run)
    assert steps_of(found) == cost.steps and largest_ms(found) < 5


@pytest.mark.slow
def test_an_early_vllm_may_stand_still() -> None:
    system, run, cost = early_run(stall_ns=100_000_000)
    found = recover(system, run)
    assert abs(found.num_steps - len(cost.steps)) <= 2 and largest_ms(found) < 5


@pytest.mark.slow
def test_recovered_steps_give_back_the_constants_they_were_made_with(tmp_path: Path) -> None:
    true = {"memory_efficiency": 0.55, "step_overhead_s": 0.004}
    system, run, _ = early_run(*(f"device.{name}={value}" for name, value in true.items()))
    assert run.requests["finish_time"].max() > 10
    measured = f"validation.measured=distserve:{write_distserve(tmp_path / 'm.exp', run.requests)}"
    fit = ["calibration.max_evaluations=600", "progress=false"]
    found = fitted.read(fit_to_recovered_steps(tmp_path / "fit", "made up", *EARLY, *RATES, measured, *fit))
    expected = {name: constant.default for name, constant in system.constants().items()}
    assert found.constants == pytest.approx(expected, rel=0.05)
    assert 400 < found.fitted_on["num_steps"] < 500
    at_once = write_distserve(tmp_path / "n.exp", run.requests.assign(arrival_time=0.0))
    part = [f"validation.measured=distserve:{at_once}", "calibration.part=first_half"]
    with pytest.raises(LogError, match="no recovered steps to fit to|no steps of vLLM agree"):
        fit_to_recovered_steps(tmp_path / "none", "made up", *EARLY, *RATES, *part, *fit)


def test_prices_that_are_far_off_for_some_decodes_are_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    system, run, cost = real_run("max_num_seqs=16", "arrival.rate=60", slow=1.2)
    with monkeypatch.context() as patched, pytest.raises(LogError, match="no steps of vLLM agree"):
        patched.setattr(mixed, "_MOST_PASSES", 1)
        recover(system, run)
    assert steps_of(recover(system, run)) == cost.steps


def test_logs_that_no_steps_agree_with_are_refused() -> None:
    for system, run, _ in (real_run("trace.num_requests=20"), early_run("trace.num_requests=20")):
        shorter = run.requests["num_output_tokens"].to_numpy().copy()
        shorter[shorter.argmax()] //= 2  # others that decode beside it have as many steps as before
        trace = replace(run.trace, table=run.trace.table.assign(num_output_tokens=shorter))
        run = replace(run, trace=trace, requests=run.requests.assign(num_output_tokens=shorter))
        with pytest.raises(LogError, match="no steps of vLLM agree .* with these settings"):
            recover(system, run)


def test_logs_that_do_not_tell_enough_are_refused() -> None:
    system, run, _ = real_run("trace.num_requests=5")
    without = replace(run, requests=run.requests.assign(queued_time=np.nan, finish_time=np.nan))
    with pytest.raises(LogError, match="no queued_time, finish_time of some requests"):
        read_engine_log(without)
    with pytest.raises(LogError, match="no finish_time of some requests"):
        read_client_log(without)
    turned = replace(run, requests=run.requests.assign(queued_time=run.requests["queued_time"].to_numpy()[::-1]))
    with pytest.raises(LogError, match="in another order than they arrived"):
        read_engine_log(turned)
    with pytest.raises(LogError, match="5 requests are refused or cut short in the simulation"):
        recover(replace(system, max_model_len=20), run)
    with pytest.raises(LogError, match="by the rules of scheduler=vllm and scheduler=vllm_v0"):
        recover(resolve(config("scheduler=mixed")), run)
    system, run, _ = early_run("trace.num_requests=5")
    with pytest.raises(LogError, match="by the rules of"):
        recover(replace(system, scheduler=replace(system.scheduler, enable_prefix_caching=True)), run)
    once = run.requests.assign(num_output_tokens=1, finish_time=run.requests["first_token_time"])
    trace = replace(run.trace, table=run.trace.table.assign(num_output_tokens=1))
    with pytest.raises(LogError, match="no request has tokens that came one after the other"):
        recover(system, replace(run, requests=once, trace=trace))
    quick = run.requests.assign(first_token_time=run.requests["arrival_time"] + 0.004)
    with pytest.raises(LogError, match="no steps of vLLM agree with the log beyond moment"):
        recover(system, replace(run, requests=quick))


@pytest.mark.parametrize("overrides", [["trace.num_requests=1"], ["trace.num_requests=2", "arrival.rate=1000"]])
def test_short_logs_of_an_early_vllm_tell_their_steps_too(overrides: list[str]) -> None:
    system, run, cost = early_run(*overrides)
    assert steps_of(recover(system, run)) == cost.steps


def test_a_request_whose_tokens_come_in_one_piece_agrees_with_no_steps() -> None:
    system, run, _ = early_run("trace.num_requests=8")
    at_once = run.requests["finish_time"].where(run.requests.index != 3, run.requests["first_token_time"])
    with pytest.raises(LogError, match="no steps of vLLM agree"):
        recover(system, replace(run, requests=run.requests.assign(finish_time=at_once)))


def test_waiting_for_kv_blocks_is_not_searched_for() -> None:
    system, run, _ = real_run("num_blocks=200", "trace.num_requests=30")
    with pytest.raises(LogError, match="no steps of vLLM agree"):
        recover(system, run)


def test_other_decisions_of_the_core_show_in_its_replay() -> None:
    system, run, _ = real_run()
    found = recover(system, run)
    fewer = replace(system, max_num_seqs=system.max_num_seqs - 1)
    assert np.abs([*replay(fewer, run, found.log, found.spans, found.price).values()]).max() > 1_000_000


def test_the_summary_scores_spans_by_kind_and_part() -> None:
    system, run, _ = real_run(noise=0.0)
    found, price = recover(system, run), priced_by(system.cost_model())
    halves = [summary(found, price, part)["errors"]["all"] for part in ("first_half", "second_half")]
    whole = summary(found, lambda step: 1.25 * price(step), "all")["errors"]
    assert sum(half["num_spans"] for half in halves) == whole["all"]["num_spans"]
    assert all(half["num_spans"] > 20 and half["mape_pct"] < 3 for half in halves)
    assert whole["all"]["num_steps"] == whole["decode"]["num_steps"] + whole["with prompts"]["num_steps"]
    assert found.num_steps == whole["all"]["num_steps"] + len(found.spans[0].steps)
    for errors_of_kind in whole.values():
        for name in ("mape_pct", "bias_pct", "total_error_pct"):
            assert errors_of_kind[name] == pytest.approx(25, abs=2)


def test_misfits_grow_with_the_distance_and_absurd_ones_are_infinite() -> None:
    near = Tolerance(share=0.1, fixed_ns=10, absurd_share=0.2, absurd_ns=5, stall_ns=50)
    assert near.misfit(100, 100, 20) == 0
    assert near.misfit(110, 100, 20) == near.misfit(90, 100, 20) == 0.25
    assert np.isinf(near.misfit(64, 100, 20)) and not np.isinf(near.misfit(65, 100, 20))  # 10 + 20 + 5
    assert near.misfit(185, 100, 20) == 3 * 85 / 20 and near.misfit(10**9, 100, 10**10) == 20
    assert np.isinf(near.misfit(186, 100, 20))


def test_requests_are_received_with_the_tokens_before_them_or_at_the_usual_delay_before_their_queue_time() -> None:
    _, run, _ = real_run("trace.num_requests=3")
    times = {
        "queued_time": [1.00015, 2.00015, 3.5],
        "first_token_time": [2.0, 3.0, 4.0],
        "finish_time": [3.0, 4.0, 5.0],
    }
    times["first_scheduled_time"] = times["queued_time"]
    log = read_engine_log(replace(run, requests=run.requests.assign(**times)))
    assert log.seen_ns.tolist() == [0, 1_000_000_000, 2_499_850_000]
    assert [moment.time_ns for moment in log.moments] == [0, 10**9, 2 * 10**9, 2_499_850_000, 3 * 10**9, 4 * 10**9]
    assert [moment.num_seen for moment in log.moments] == [1, 2, 2, 3, 3, 3]
    assert log.moments[2].tokens == {(0, True), (1, False)}
