"""From samples of a machine that is made up to the tables of its profile."""

from __future__ import annotations

import itertools

import pandas as pd
import pytest

pytest.importorskip("torch")

from simulator.profile.meta import ProfileMeta  # noqa: E402
from simulator.profile.profile import Profile  # noqa: E402
from simulator.profiler import stopwatch  # noqa: E402
from simulator.profiler.bench import Bench  # noqa: E402
from simulator.profiler.profile_tables import make_profile, mean_over_median  # noqa: E402
from simulator.profiler.samples import ADDED_BY_ATTENTION, ALL_OPERATORS, ATTENTION, DISTURBED, Point, Samples  # noqa: E402
from simulator.profiler.stopwatch import Undisturbed  # noqa: E402
from tests.simulator.builders import ENGINE, MODEL_SHAPE, TickingClock, small_model  # noqa: E402

CALLS = {"qkv_proj": 2, "o_proj": 2, "gate_up_proj": 2, "down_proj": 2, "lm_head": 1, "sampler": 1}


def made_up_samples() -> tuple[Samples, float]:
    """Of a machine whose times are known: steps of 20, 36, 50 or 90 us beyond their operators, 2 layers. Returns also
    what the operators of 8 decodes take."""
    samples = Samples({})
    for size in (1, 8, 64):
        times = {"qkv_proj": [10.0 + size], "o_proj": [5.0], "gate_up_proj": [3.0], "down_proj": [4.0]}
        heads = {"lm_head": [20.0 + size], "sampler": [3.0]} if size <= 8 else {}
        samples.add(Point("tokens", (size,)), times | heads, 1.0)
    for batch in (1, 8):
        for context in (16, 1024):
            samples.add(Point("decode", (batch, context)), {"attention": [1.0 + batch * context / 16]}, 1.0)
    samples.add(Point("uneven", (8, 256, 50)), {"attention": [150.0]}, 1.0)
    for chunk in (1, 64):
        for start in (0, 128):
            samples.add(Point("prefill", (chunk, start)), {"attention": [2.0 + chunk + start / 8]}, 1.0)
    operators = 2 * (10 + 8 + 5 + 7 + 1 + 8 * 261 / 16) + 28 + 3
    samples.add(Point("step_decode", (8, 256)), {"8": [operators + 50] * 3, DISTURBED: [2 * (operators + 50)]}, 1.0)
    layers = 2 * (10 + 64 + 5 + 7 + 2 + 64)
    samples.add(Point("step_prefill", (64,)), {"64": [layers + 21 + 3 + 90] * 3}, 1.0)
    alone = 2 * (10 + 1 + 5 + 7 + 1 + 261 / 16) + 21 + 3
    samples.add(Point("step_decode", (1, 256)), {"1": [alone + 20] * 3, DISTURBED: [2 * (alone + 20)]}, 1.0)
    layers = 2 * (10 + 8 + 5 + 7 + 2 + 8)
    samples.add(Point("step_prefill", (8,)), {"8": [layers + 21 + 3 + 36] * 3}, 1.0)
    return samples, operators


def made_up_profile(samples: Samples, *, on_a_line: bool = True) -> Profile:
    meta = ProfileMeta("made up", "small", 1, 2, CALLS, dtype="float32", batched_prefill=False)
    return make_profile(samples, meta, MODEL_SHAPE, lambda num_tokens: [num_tokens], on_a_line=on_a_line)


def test_the_rest_of_steps_is_what_was_put_in() -> None:
    samples, operators = made_up_samples()
    profile = made_up_profile(samples)
    (uneven,) = profile.tables["deviations"].to_dict("records")
    assert uneven == {
        "num_decodes": 8, "decode_context": 256, "deviation_pct": 50, "time_us": 150.0, "spread_us": 0.0,
    }  # fmt: skip
    assert profile.meta.mean_over_median == 1.25
    steps = profile.tables["steps"].set_index(["kind", "num_tokens"])["time_us"]
    assert steps["decode", 1] == pytest.approx(20, abs=0.01) and steps["decode", 8] == pytest.approx(50, abs=0.01)
    assert steps["prefill", 8] == pytest.approx(36, abs=0.01) and steps["prefill", 64] == pytest.approx(90, abs=0.01)
    samples.add(Point("step_decode", (8, 256)), {ALL_OPERATORS: [operators + 20] * 3}, 1.0)
    timed_beside = made_up_profile(samples).tables["steps"]
    assert timed_beside.set_index(["kind", "num_tokens"])["time_us"]["decode", 8] == pytest.approx(30, abs=0.01)


def test_the_rest_of_steps_of_kernels_launched_ahead_is_on_no_line() -> None:
    samples, _ = made_up_samples()
    layers = 2 * (10 + 32 + 5 + 7 + 2 + 32)
    samples.add(Point("step_prefill", (32,)), {"32": [layers + 21 + 3 + 4] * 3}, 1.0)
    expected = {"decode": {1: 20, 8: 50}, "prefill": {8: 36, 32: 4, 64: 90}}
    for kind, steps in made_up_profile(samples, on_a_line=False).tables["steps"].groupby("kind"):
        found = dict(zip(steps["num_tokens"], steps["time_us"], strict=True))
        assert found == pytest.approx(expected.pop(str(kind)), abs=0.01)
    assert not expected


@pytest.mark.parametrize("on_a_line", [False, True])
def test_steps_that_were_faster_than_their_operators_have_no_rest(on_a_line: bool) -> None:
    """As noise has it; readers refuse a time below 0."""
    samples, operators = made_up_samples()
    samples.add(Point("step_decode", (8, 256)), {ALL_OPERATORS: [operators + 80] * 3}, 1.0)
    steps = made_up_profile(samples, on_a_line=on_a_line).tables["steps"].set_index(["kind", "num_tokens"])["time_us"]
    assert steps["decode", 8] == 0 and steps["decode", 1] == pytest.approx(20, abs=0.01)


def test_a_profile_holds_medians() -> None:
    """A visit in three found the machine three times as fast as the others did."""
    fast, operators = made_up_samples()
    fast.add(Point("beside", (8, 64)), {ADDED_BY_ATTENTION: [30.0]}, 1.0)
    fast.add(Point("step_decode", (8, 256)), {ALL_OPERATORS: [operators] * 3}, 1.0)
    slow, mostly_slow = Samples({}), Samples({})
    for family in ("tokens", "decode", "uneven", "prefill", "beside", "step_decode", "step_prefill"):
        for point in fast.points(family):
            times = {name: fast.times(point, name) for name in fast.operators(point)}
            for samples, factors in ((slow, [3]), (mostly_slow, [3, 1, 3])):
                for factor in factors:
                    samples.add(
                        point, {name: [factor * each for each in values] for name, values in times.items()}, 1.0
                    )
    found, expected = made_up_profile(mostly_slow).tables, made_up_profile(slow).tables
    assert found.keys() == expected.keys()
    for name, table in found.items():
        pd.testing.assert_series_equal(table["time_us"], expected[name]["time_us"])


def test_a_slow_step_with_prompts_decides_nothing() -> None:
    """Every one is of another number of tokens, as the profiler times them."""
    samples, _ = made_up_samples()
    expected = made_up_profile(samples).tables["steps"]["time_us"]
    samples.add(Point("step_prefill", (64,)), {"62": [9e3], "60": [1.0], "58": [8e3], "57": [2.0]}, 1.0)
    pd.testing.assert_series_equal(made_up_profile(samples).tables["steps"]["time_us"], expected)


def test_decodes_carry_what_they_add_to_other_operators() -> None:
    """Two layers; the samples of 512 tokens say less than those of 64, which cannot be but noise."""
    samples = Samples({})
    samples.add(Point("tokens", (1,)), {operator: [10.0] for operator in CALLS}, 1.0)
    for batch, context in ((1, 64), (8, 64), (8, 1024)):  # the shortest of those below are of a single block
        samples.add(Point("decode", (batch, context)), {ATTENTION: [5.0]}, 1.0)
        samples.add(Point("uneven", (batch, context, 50)), {ATTENTION: [7.0]}, 1.0)
    samples.add(Point("prefill", (1, 0)), {ATTENTION: [2.0]}, 1.0)
    for sizes, added in (((1, 32), -4.0), ((1, 64), 30.0), ((8, 64), 10.0), ((8, 1024), 100.0)):
        samples.add(Point("beside", sizes), {ADDED_BY_ATTENTION: [added] * 3}, 1.0)
    meta = ProfileMeta("made up", "small", 1, 2, CALLS, dtype="float32", block_size=32, batched_prefill=False)
    tables = make_profile(samples, meta, MODEL_SHAPE, lambda num_tokens: [num_tokens], on_a_line=True).tables
    assert tables["attention"]["time_us"].tolist() == [5 + 20 / 2, 5 + 20 / 2, 5 + 100 / 2, 2.0]
    assert tables["deviations"]["time_us"].tolist() == [7 + 20 / 2, 7 + 20 / 2, 7 + 100 / 2]


def test_a_mean_counts_disturbed_steps_and_stalls_up_to_three_medians() -> None:
    samples = Samples({})
    assert mean_over_median(samples) == 1.0
    samples.add(Point("step_decode", (2, 64)), {"2": [9.0, 10.0, 14.0], DISTURBED: []}, 1.0)
    assert mean_over_median(samples) == pytest.approx(1.1)
    samples.add(Point("step_decode", (2, 64)), {"2": [10.0], DISTURBED: [17.0, 1e6]}, 1.0)
    assert mean_over_median(samples) == pytest.approx((9 + 10 + 14 + 10 + 17 + 30) / 60)
    samples.add(Point("step_decode", (8, 64)), {"8": [20.0], DISTURBED: []}, 1.0)
    assert mean_over_median(samples) == pytest.approx((90 / 60 + 1) / 2)
    assert samples.operators(Point("step_decode", (2, 64))) == ["2"]  # the disturbed are in no table


def test_times_during_which_others_ran_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    preemptions = iter([0, 0, 0, 1, 1, 1, 1, 2])
    monkeypatch.setattr(stopwatch, "_num_preemptions", lambda: next(preemptions))
    kept, disturbed = Undisturbed(), Undisturbed()
    for each, times in ((kept, (1.0, 5.0, 2.0)), (disturbed, (7.0,))):
        for time in times:
            each.begin()
            each.add({"a": time})
    assert kept.times == {"a": [1.0, 2.0]} and kept.disturbed("a") == [5.0]
    assert disturbed.times == {"a": [7.0]} and disturbed.disturbed("a") == []


def test_whole_steps_during_which_others_ran_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = itertools.count()
    monkeypatch.setattr(stopwatch, "_num_preemptions", lambda: next(counts) // 3)  # rises within some of the steps
    bench = Bench(ENGINE, small_model(), None, 0.0, None, lambda report: None, TickingClock())
    found = bench.measure(Point("step_decode", (2, 24)))
    assert len(found["2"]) + len(found[DISTURBED]) == 8 and found["2"] and found[DISTURBED]
