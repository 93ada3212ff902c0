"""Figures of long runs stay small, and keep what is rare."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from harness.figures.browser import panels_data
from harness.figures.charts.requests import MOST_POINTS, requests_chart, thinned


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.integers(30, 50))
def test_thinning_keeps_the_order_and_what_is_few(values: list[float], most: int) -> None:
    rows = thinned(np.array(values), max(most, len(values)))
    assert rows.tolist() == list(range(len(values)))


def test_thinning_keeps_the_largest_of_many() -> None:
    values = np.random.default_rng(0).lognormal(size=1_000_000)
    rows = thinned(values)
    assert len(rows) <= MOST_POINTS and (np.diff(rows) > 0).all()
    assert set(np.argsort(values)[-100:]) <= set(rows.tolist())


def test_a_million_requests_give_small_figures() -> None:
    rng = np.random.default_rng(0)
    count = 1_000_000
    requests = pd.DataFrame({
        "request_id": np.arange(count), "arrival_time": np.arange(count) * 0.01, "ttft": rng.lognormal(size=count),
        "num_prompt_tokens": rng.integers(1, 9000, count), "num_output_tokens": rng.integers(1, 900, count),
    })  # fmt: skip
    chart = requests_chart(requests, {"ttft": 500.0})
    assert chart is not None and len(json.dumps(panels_data(chart))) < 1_000_000
