"""task=observe: the ladder that it drives, whether what is fitted is what was there, and what it leaves."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from experiments import PLAIN
from harness import run
from harness.calibration.ladder import make_ladder
from harness.calibration.observe import conclusion, tokens_per_s
from harness.config.schema.tasks.validation import ObserveConfig
from harness.errors import ConfigError
from harness.figures.pages import write_page
from harness.measured import load_measured
from harness.studies.machine_profiling import PROFILES
from tests.harness.builders import config, execute_in
from tests.harness.engines.serving.builders import serving
from tests.harness.figures.pages.builders import Parsed, written
from tests.harness.measured.builders import calibrate, compare, fitted_on, write_distserve

PROFILED = (
    "model=tiny", "device=laptop-cpu", "cost=profiled", f"cost.profile={PROFILES / 'amd-epyc' / 'tiny'}",
    *PLAIN, "max_num_batched_tokens=512", "max_num_seqs=16",
)  # fmt: skip
TRUTH = {
    "kernel_factor": 1.4, "step_overhead_us": 900.0, "sequence_overhead_us": 100.0, "front_end_ms": 12.0,
    "front_end_token_us": 30.0,
}  # fmt: skip
SHORT = [
    word
    for part, value in (("prompt", 24), ("output", 6))
    for word in (f"trace/lengths@trace.{part}=constant", f"trace.{part}.value={value}")
]


def test_loads_take_turns_and_half_of_the_requests_are_held_out() -> None:
    times, slices = make_ladder(100.0, 1e-3, ObserveConfig(time_s=86_400), 10**6, np.random.default_rng(0))
    assert len(times) == 4000 and times[0] == 0 and (np.diff(times) > 0).all()
    sent = slices.groupby(["load", "held_out"])["num_requests"].sum()
    assert dict(sent) == {(20, False): 267, (50, False): 667, (65, True): 2000, (80, False): 1066}
    for load, gaps in pd.Series(np.diff(times)).groupby(
        np.repeat(slices["load"].to_numpy(), slices["num_requests"])[1:]
    ):
        assert 1 / gaps.mean() == pytest.approx(load, rel=0.15)
    pairs, blocks = (slices["held_out"].to_numpy().reshape(-1, count) for count in (2, 6))
    assert (pairs.sum(axis=1) == 1).all() and 0 < pairs[:, 0].mean() < 1, "in either order"
    loads = slices["load"].to_numpy().reshape(-1, 6)
    assert len(blocks) == 30 and all(
        set(block[~held]) == {20, 50, 80} for block, held in zip(loads, blocks, strict=True)
    )


def test_loads_are_those_that_are_asked_for() -> None:
    wanted = ObserveConfig(time_s=2000, loads=(0.1, 0.3), held_out_load=0.2)
    slices = make_ladder(100.0, 1e-3, wanted, 10**6, np.random.default_rng(0)).slices
    sent = slices.groupby(["load", "held_out"])["num_requests"].sum()
    assert dict(sent) == {(10, False): 500, (20, True): 2000, (30, False): 1500} and len(slices) == 120
    with pytest.raises(ValueError, match="loads, held_out_load: must differ"):
        ObserveConfig(loads=(0.2, 0.3), held_out_load=0.3)


@pytest.mark.parametrize(("answer_s", "count"), [(0.1, 54), (2.0, 12), (5.0, 6), (60.0, 6)])
def test_slices_are_longer_than_answers_where_there_is_time(answer_s: float, count: int) -> None:
    times, slices = make_ladder(10.0, answer_s, ObserveConfig(time_s=200), 10**6, np.random.default_rng(0))
    assert times[-1] == pytest.approx(0.65 * 200, rel=0.1) and len(slices) == count
    assert slices["num_requests"].min() >= 5
    few = make_ladder(1.0, 1e-3, ObserveConfig(time_s=109), 20, np.random.default_rng(0)).slices
    assert len(few) == 6 and few["num_requests"].sum() == 40, "a slice has some requests"


@pytest.mark.parametrize(
    ("rate", "time_s", "most", "message"),
    [
        (1.0, 60.0, 10**6, "22 requests at 1 requests/s, and 40 are needed: give observe.time_s=109$"),
        (1.0, 1e4, 19, "38 requests at 1 requests/s, and 40 are needed: give a longer trace"),
        (0.0, 60.0, 10**6, r"answered no request within [\d.]+ s: give observe.time_s=600$"),
    ],
)
def test_a_ladder_has_requests_enough_to_tell(rate: float, time_s: float, most: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_ladder(rate, 1.0, ObserveConfig(time_s=time_s), most, np.random.default_rng(0))


def test_tokens_count_as_far_as_they_are_in_the_window() -> None:
    table = {
        "first_token_time": [0.0, 4.0, 6.0, np.nan, 0.0, 3.0, 1.0],
        "finish_time": [5.0, 6.0, np.nan, np.nan, 1.0, 3.0, 1.0],
        "num_output_tokens": [10, 4, 8, 0, 7, 1, 1],
    }  # fmt: skip
    assert tokens_per_s(pd.DataFrame(table), 2.5, 10.0) == pytest.approx((5 + 4 + 8 + 1) / 7.5)
    assert tokens_per_s(pd.DataFrame(table), 0.0, 0.0) == 0, "nothing has ended"


def test_a_median_of_0_has_no_error_to_conclude_with() -> None:
    errors = [("ttft", "median", 3.0), ("tpot", "median", None), ("tpot", "p90", -2.0), ("tpot", "mean", 9.0)]
    names = ("metric", "statistic", "error_pct", "noise_floor_pct")
    rows = [dict(zip(names, (*row, row[2] and 4.04), strict=True)) for row in errors]
    fitted = {"objective": {"errors_after": {"ttft median": 0.5}}}
    assert conclusion(fitted, {"errors": rows}, Path("c.yaml"), 7) == [
        "fitted loads: TTFT p50 +50.0 %",
        "held-out load: TTFT p50 +3.0 ± 4.0 %, TPOT p90 -2.0 ± 4.0 %",
        "use it with: cost.calibration=c.yaml num_blocks=7",
    ]


@pytest.mark.long
def test_what_is_fitted_from_outside_predicts_the_other_half(tmp_path: Path) -> None:
    path = fitted_on(tmp_path / "truth.yaml")
    path.write_text(path.read_text().replace("flops_efficiency: 0.5", json.dumps(TRUTH)[1:-1].replace(", ", "\n  "))
                    .replace("cost: roofline", "cost: profiled"))  # fmt: skip
    work = ("trace=synthetic", "trace.num_requests=80", "arrival.rate=4")
    made = run(*PROFILED, *work, f"cost.calibration={path}").requests
    measured = f"distserve:{write_distserve(tmp_path / 'm.exp', made)}"
    assert made["ttft"].min() > 12e-3 > run(*PROFILED, *work).requests["ttft"].min()
    names = f"calibration.constants=[{','.join(TRUTH)}]"
    found = calibrate(
        tmp_path / "fit", measured, *PROFILED, names, "calibration.part=first_half", "calibration.max_evaluations=40"
    )
    fitted = f"cost.calibration={found.path}"  # one factor and a time of the host stand in for each other in part
    errors = compare(measured, tmp_path / "out", *PROFILED, fitted, "validation.score=second_half")["errors"]
    by_name = {(row["metric"], row["statistic"]): row["error_pct"] for row in errors}
    assert max(abs(by_name[metric, "p90"]) for metric in ("ttft", "tpot", "e2el")) < 3
    given = (f"cost.calibration={path}", "frontend=vllm", "frontend.latency_ms=100")
    assert run(*PROFILED, *work, *given).requests["ttft"].min() > 50e-3  # what is given goes before what was fitted


@pytest.mark.long
def test_a_server_is_observed_and_its_run_can_be_read_again(tmp_path: Path, capsys: Any) -> None:
    server = ("engine=sim", *PROFILED)
    with serving(tmp_path / "server", *server) as running:
        asked = ("task=observe", "engine=openai", f"engine.endpoint={running.address}", "observe.time_s=3")
        few = ("trace=synthetic", *SHORT, "calibration.max_evaluations=5", "progress=false")
        execute_in(tmp_path / "out", config(*asked, *PROFILED, *few))
        said = capsys.readouterr().out
        assert "probe: 16 clients for at most 1 s" in said and "the server knew prompts" not in said
        assert "RMS relative error of TTFT, TPOT, E2EL statistics of each load: " in said
        execute_in(tmp_path / "known", config(*asked, *PROFILED, *few, "calibration.max_evaluations=1"))
        assert "the server knew prompts of this run" in capsys.readouterr().out
    found = [line for line in said.splitlines() if re.match("ladder|the server itself|fitted|held-out|use", line)]
    ladder, itself, fitted, held_out, takes = found
    assert fitted.startswith("fitted loads: TTFT p50 ") and re.search("E2EL p90 .* ± ", held_out)
    document = json.loads((tmp_path / "out" / "validation.json").read_text())
    assert document["score"] == "held_out" and not document["scored_on_fitted_data"]
    measured = load_measured(f"run:{tmp_path / 'out' / 'measured'}")
    assert len(measured.requests) == document["measured"]["num_requests"] >= 40
    assert measured.own is None and measured.kv_tokens and measured.requests["first_scheduled_time"].isna().all()
    assert takes.endswith(
        f"cost.calibration={tmp_path / 'out' / 'calibration.yaml'} num_blocks={measured.kv_tokens // 16}"
    )
    arrival = yaml.safe_load((tmp_path / "out" / "measured" / "config.yaml").read_text())["arrival"]
    span_s = np.ptp(measured.requests["arrival_time"])
    assert arrival == {"kind": "poisson", "rate": pytest.approx(len(measured.requests) / span_s, rel=0.1)}
    assert measured.series["num_running"].max() > 0
    again = (f"cost.calibration={tmp_path / 'out' / 'calibration.yaml'}", "validation.score=held_out")
    same = compare(f"run:{tmp_path / 'out' / 'measured'}", tmp_path / "again", *PROFILED, *again)
    assert same["errors"] == document["errors"]
    slices = pd.read_csv(tmp_path / "out" / "slices.csv")
    assert f"in {len(slices)} slices" in ladder and f"of {len(slices)} slices" in itself
    assert slices["num_requests"][slices["held_out"]].sum() == document["num_scored"] == len(measured.requests) // 2
    assert itself in Parsed(written(write_page(tmp_path / "out"))).text
    refitted = (f"run:{tmp_path / 'out' / 'measured'}", *PROFILED, "calibration.max_evaluations=1")
    assert calibrate(tmp_path / "b", *refitted, "calibration.part=held_out").fitted_on["part"] == "held_out"
    assert set(measured.trace.table.columns) >= {"num_prompt_tokens", "arrival_time"}
