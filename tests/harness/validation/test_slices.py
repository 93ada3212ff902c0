"""What the slices of a run say of the server itself, against servers that were made to vary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from harness.errors import MeasuredRunError
from harness.measured.own_run import _loads
from harness.validation.error_statistics import comparison, statistics
from harness.validation.slices import drift, slice_table, with_noise_of_slices
from tests.harness.measured.builders import made_up

SLICES, EACH = 12, 20


def ladder(pace: np.ndarray) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A run whose requests take `pace` times as long in each slice as in its simulation; no two requests are alike."""
    rng, slices = np.random.default_rng(1), np.repeat(np.arange(len(pace)), EACH)
    arrival, ttft, decode = np.arange(len(slices)) * 1.0, *rng.exponential(0.1, (2, len(slices)))
    tables = []
    for factor in (pace[slices], 1.0):
        table = pd.concat([made_up().iloc[[0]]] * len(slices), ignore_index=True).assign(
            arrival_time=arrival, first_token_time=arrival + ttft * factor, ttft=ttft * factor, tpot=decode * factor,
            finish_time=arrival + (ttft + decode) * factor, e2el=(ttft + decode) * factor,
        )  # fmt: skip
        tables.append(table.assign(slice=slices, load=slices % 3, held_out=slices % 2 == 0))
    return tables[0], tables[1]


def floors(measured: pd.DataFrame, simulated: pd.DataFrame) -> pd.Series:
    table = comparison(statistics(measured), statistics(simulated))
    return with_noise_of_slices(table, measured, simulated).set_index(["metric", "statistic"])["noise_floor_pct"]


def test_noise_is_that_of_the_server_and_not_of_the_requests() -> None:
    assert floors(*ladder(np.full(SLICES, 1.25)))["ttft", "p99"] == pytest.approx(0, abs=1e-9), "slow all the time"
    pace = np.resize([0.8, 1.2], SLICES)
    found = floors(*ladder(pace))
    two_errors = 200 * pace.std(ddof=1) / np.sqrt(SLICES) / pace.mean()
    assert found["tpot", "mean"] == pytest.approx(two_errors, rel=0.3)
    long = np.repeat(np.resize(pace, 20), 4)
    two_errors = 200 * pace.std(ddof=1) / np.sqrt(20) / pace.mean()
    assert floors(*ladder(long))["tpot", "mean"] == pytest.approx(two_errors, rel=0.3), "neighbours repeat nothing"
    measured, simulated = ladder(pace)
    assert floors(measured.iloc[:EACH], simulated.iloc[:EACH]).isna().all(), "one slice does not repeat"


def test_the_drift_is_by_slices_and_by_thirds_of_the_run() -> None:
    pace = np.repeat([1.0, 1.0, 1.6], SLICES // 3)
    measured, simulated = ladder(pace)
    slices = slice_table(measured, simulated)
    assert slices["num_requests"].tolist() == [EACH] * SLICES and slices["start_s"].tolist()[:2] == [0, EACH]
    assert slices["held_out"].tolist() == [True, False] * (SLICES // 2)
    assert (slices["ttft_measured_ms"] / slices["ttft_simulated_ms"]).to_numpy() == pytest.approx(pace)
    assert slices["ttft_measured_ms"][0] == pytest.approx(1e3 * measured["ttft"][:EACH].mean())
    found = drift(slices)
    first, second, last = found["pace_thirds_pct"]
    assert first == pytest.approx(second) == pytest.approx(found["pace_p10_pct"])
    assert (1 + last / 100) / (1 + first / 100) == pytest.approx(1.6) and last == pytest.approx(found["pace_p90_pct"])
    assert f"by thirds of it: first {first:+.1f} %" in found["text"]
    nothing = drift(slices.assign(decode_simulated_s=0.0))
    assert nothing["text"] == "" and nothing["pace_thirds_pct"] is None


def test_a_ladder_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ladder.csv"
    path.write_text("load,held_out,num_requests\n2,False,3\n4.5,True,1\n")
    found = _loads(path, np.array([0, 2, 3]), 4)
    assert found["slice"].tolist() == [0, 0, 1] and found["load"].tolist() == [2, 2, 4.5]
    assert found["held_out"].tolist() == [False, False, True], "a request that failed is in none"
    with pytest.raises(MeasuredRunError, match=r"ladder.csv: of 4 requests, and 5 were sent"):
        _loads(path, np.array([0]), 5)
    for text in ("", "a\n1\n", "load,held_out,num_requests\nx,False,4\n", "load,held_out,num_requests\n2,3,4\n"):
        path.write_text(text)
        with pytest.raises(MeasuredRunError, match=r"ladder.csv: "):
            _loads(path, np.array([0]), 4)
