"""Statistics of measured and simulated runs, their errors and their noise, against values computed by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from harness.config.schema.tasks.validation import Part
from harness.errors import ConfigError
from harness.validation.error_statistics import (
    align,
    comparison,
    is_in_part,
    part_of,
    statistics,
    with_request_errors,
)
from simulator.calibration import parts_overlap
from tests.harness.measured.builders import made_up


def test_statistics_are_those_computed_by_hand() -> None:
    found = statistics(made_up())
    assert found["ttft", "mean"] == pytest.approx(2500) and found["ttft", "median"] == pytest.approx(2500)
    assert found["ttft", "p90"] == pytest.approx(3700) and found["ttft", "p99"] == pytest.approx(3970)
    assert found["tpot", "mean"] == pytest.approx(200) and found["tpot", "p95"] == pytest.approx(290)
    assert found["e2el", "mean"] == pytest.approx(2875)
    assert found["duration", "total"] == pytest.approx(7.4)
    assert found["request_throughput", "mean"] == pytest.approx(4 / 7.4)
    assert found["output_throughput", "mean"] == pytest.approx(11 / 7.4)
    assert found["total_token_throughput", "mean"] == pytest.approx(111 / 7.4)
    assert found["preemptions", "total"] == 3 and found["preempted_requests", "total"] == 2
    assert found["cached_tokens", "total"] == 25 and found["prefix_cache_hit_rate", "mean"] == 0.25
    assert math.isnan(found["queue_time", "mean"])


def test_what_was_not_measured_is_not_compared() -> None:
    unknown = made_up().assign(num_preemptions=np.nan, num_cached_tokens=np.nan)
    table = comparison(statistics(unknown), statistics(made_up()))
    assert set(table["metric"]) == {
        "ttft", "tpot", "e2el", "duration", "request_throughput", "output_throughput", "total_token_throughput",
    }  # fmt: skip


def test_errors_are_relative_to_what_was_measured() -> None:
    measured = {("ttft", "mean"): 200.0, ("preemptions", "total"): 0.0, ("cached_tokens", "total"): 0.0}
    simulated = {("ttft", "mean"): 190.0, ("preemptions", "total"): 0.0, ("cached_tokens", "total"): 7.0}
    table = comparison(measured, simulated).set_index("metric")
    assert table["error_pct"]["ttft"] == pytest.approx(-5)
    assert table["error_pct"]["preemptions"] == 0 and math.isnan(table["error_pct"]["cached_tokens"])
    assert table["noise_floor_pct"].isna().all()


def test_the_noise_floor_is_the_largest_deviation_from_the_median_of_the_repeats() -> None:
    key = ("ttft", "mean")
    table = comparison({key: 110.0}, {key: 100.0}, [{key: 100.0}, {key: 80.0}])
    assert table["noise_floor_pct"].item() == pytest.approx(20)


@pytest.mark.parametrize("counts", sorted(set(itertools.permutations([0.0, 3.0, 0.0]))))
def test_the_noise_of_what_mostly_does_not_happen_is_unknown(counts: tuple[float, ...]) -> None:
    key = ("preemptions", "total")
    runs = [{key: count} for count in counts]
    table = comparison(runs[0], {key: 0.0}, runs[1:])
    assert table["measured"].item() == 0 and math.isnan(table["noise_floor_pct"].item())
    never = comparison({key: 0.0}, {key: 0.0}, [{key: 0.0}])
    assert never["noise_floor_pct"].item() == 0


def test_with_repeats_the_simulation_is_compared_to_the_median_run() -> None:
    key = ("ttft", "mean")
    table = comparison({key: 110.0}, {key: 101.0}, [{key: 100.0}, {key: 80.0}])
    assert table["measured"].item() == 100 and table["error_pct"].item() == pytest.approx(1)


def test_levels_are_compared_where_they_were_measured() -> None:
    measured = pd.DataFrame({"time": [0.0, 1.0], "num_running": [2.0, 4.0], "kv_cache_usage": [np.nan, np.nan]})
    simulated = pd.DataFrame({"time": [0.0, 1.0], "num_running": [3.0, 3.0], "kv_cache_usage": [0.5, 0.5]})
    assert align(measured, simulated) == {
        "num_running": {"mean_measured": 3.0, "mean_simulated": 3.0, "mean_abs_difference": 1.0}
    }


@pytest.mark.parametrize("parts", [("first_half", "second_half"), ("fitted", "held_out")])
def test_the_parts_of_a_run_are_all_requests_once(parts: tuple[Part, Part]) -> None:
    table = pd.DataFrame({"held_out": [False, True, True, False, True, False, True]})
    first, second = (part_of(table, part).tolist() for part in parts)
    assert sorted(first + second) == part_of(table, "all").tolist() == list(range(7)) and len(first) == 3
    assert not parts_overlap(*parts) and parts_overlap(parts[0], "all")
    assert parts_overlap("first_half", "held_out") and parts_overlap(parts[0], parts[0])
    arrivals = np.arange(7.0)
    times = np.array([-1.0, 0.0, 1.5, 2.5, 3.0, 99.0])
    found = is_in_part(times, arrivals, np.array(first))
    assert found.tolist() == [each in first for each in (0, 0, 1, 2, 3, 6)]


def test_loads_that_a_run_does_not_have_are_refused() -> None:
    with pytest.raises(ConfigError, match="held_out: this run has no loads to tell apart"):
        part_of(made_up(), "held_out")


def test_errors_of_single_requests_do_not_compensate() -> None:
    measured = made_up()
    factors = np.resize([0.5, 1.5], len(measured))
    simulated = measured.assign(ttft=measured["ttft"] * factors, e2el=measured["e2el"] * 1.1)
    table = comparison(statistics(measured), statistics(simulated))
    found = with_request_errors(table, measured, simulated, [measured.assign(ttft=measured["ttft"] * 1.02)])
    assert len(found) == len(table) + 4
    names = list(zip(found["metric"], found["statistic"], strict=True))
    assert names[4:7] == [("ttft", "p99"), ("ttft", "request_mape"), ("ttft", "request_p99")]
    errors = found.set_index(["metric", "statistic"])
    assert errors["error_pct"]["ttft", "request_mape"] == pytest.approx(50)
    assert errors["error_pct"]["e2el", "request_p99"] == pytest.approx(10)
    assert errors["noise_floor_pct"]["ttft", "request_mape"] == pytest.approx(2)


def test_requests_that_one_side_refused_have_no_error() -> None:
    measured = made_up()
    refused = measured.assign(status="refused")
    found = with_request_errors(comparison(statistics(measured), {}), measured, refused)
    of_requests = found[found["statistic"].isin(["request_mape", "request_p99"])]
    assert len(of_requests) == 4 and of_requests["error_pct"].isna().all()
