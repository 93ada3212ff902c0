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
from harness.calibration.observe import conclusion, ladder, tokens_per_s
from harness.errors import ConfigError
from harness.measured import load_measured
from harness.studies.machine_profiling import PROFILES
from tests.harness.builders import config, execute_in
from tests.harness.engines.serving.builders import serving
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


def test_each_half_of_a_ladder_is_half_of_its_requests_at_its_rates() -> None:
    times = ladder(100.0, 1e5, 10**6, np.random.default_rng(0))
    assert len(times) == 4000 and times[0] == 0 and (np.diff(times) > 0).all()
    counts, start = (267, 667, 1066, 2000), 0
    for count, share in zip(counts, (0.2, 0.5, 0.8, 0.65), strict=True):
        part = times[start : start + count]
        assert (count - 1) / (part[-1] - part[0]) == pytest.approx(100 * share, rel=0.15)
        start += count
    assert ladder(10.0, 200.0, 10**6, np.random.default_rng(0))[-1] == pytest.approx(0.65 * 200, rel=0.1)


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
        ladder(rate, time_s, most, np.random.default_rng(0))
    assert len(ladder(1.0, 109.0, 20, np.random.default_rng(0))) == 40


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
    rows = [dict(zip(("metric", "statistic", "error_pct"), row, strict=True)) for row in errors]
    fitted = {"objective": {"errors_after": {"ttft median": 0.5}}}
    assert conclusion(fitted, {"errors": rows}, Path("c.yaml"), 7) == [
        "first half, fitted: TTFT p50 +50.0 %",
        "second half, not fitted: TTFT p50 +3.0 %, TPOT p90 -2.0 %",
        "use it with: cost.calibration=c.yaml num_blocks=7",
    ]


@pytest.mark.long
def test_what_is_fitted_from_outside_predicts_the_other_half(tmp_path: Path) -> None:
    path = fitted_on(tmp_path / "truth.yaml")
    path.write_text(path.read_text().replace("flops_efficiency: 0.5", json.dumps(TRUTH)[1:-1].replace(", ", "\n  "))
                    .replace("cost: roofline", "cost: profiled"))  # fmt: skip
    work = ("trace=synthetic", "trace.num_requests=120", "arrival.rate=4")
    made = run(*PROFILED, *work, f"cost.calibration={path}").requests
    measured = f"distserve:{write_distserve(tmp_path / 'm.exp', made)}"
    assert made["ttft"].min() > 12e-3 > run(*PROFILED, *work).requests["ttft"].min()
    names = f"calibration.constants=[{','.join(TRUTH)}]"
    found = calibrate(
        tmp_path / "fit", measured, *PROFILED, names, "calibration.part=first_half", "calibration.max_evaluations=150"
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
        asked = ("task=observe", "engine=openai", f"engine.endpoint={running.address}", "observe.time_s=4")
        few = ("trace=synthetic", *SHORT, "calibration.max_evaluations=5", "progress=false")
        execute_in(tmp_path / "out", config(*asked, *PROFILED, *few))
        said = capsys.readouterr().out
        assert "probe: 16 clients for at most 1 s" in said and "the server knew prompts" not in said
        execute_in(tmp_path / "known", config(*asked, *PROFILED, *few))
        assert "the server knew prompts of this run" in capsys.readouterr().out
    _, fitted, held_out, takes = (line for line in said.splitlines() if re.match("ladder|first|second|use", line))
    assert fitted.startswith("first half, fitted: TTFT p50 ") and "E2EL p90" in held_out
    document = json.loads((tmp_path / "out" / "validation.json").read_text())
    assert document["score"] == "second_half" and not document["scored_on_fitted_data"]
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
    again = (f"cost.calibration={tmp_path / 'out' / 'calibration.yaml'}", "validation.score=second_half")
    same = compare(f"run:{tmp_path / 'out' / 'measured'}", tmp_path / "again", *PROFILED, *again)
    assert same["errors"] == document["errors"]
    assert set(measured.trace.table.columns) >= {"num_prompt_tokens", "arrival_time"}
