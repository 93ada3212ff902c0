"""Policies from the command line to the results: their settings, and the classes of requests that they tell apart."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from harness.config.composing import help_text
from harness.errors import ConfigError
from harness.results.stored.files import read_results
from harness.terminal import run
from tests.harness.builders import CONF, config

SMALL = (
    "trace=synthetic", "trace.num_requests=150", "trace.priority_shares=[1,3]", "trace.num_tenants=2",
    "trace.tenant_zipf_exponent=2", "arrival.rate=100", "max_num_seqs=8", "progress=false",
)  # fmt: skip


def served(folder: Path, *overrides: str) -> pd.DataFrame:
    run(config(*SMALL, *overrides), folder)
    return read_results(folder)[0].requests


def test_each_policy_favours_whom_it_says_and_settings_change_how_much(tmp_path: Path) -> None:
    ttft = {}
    for name, overrides in {
        "strict": ["scheduler=priority", "scheduler.options.ageing_s=null"],
        "aged": ["scheduler=priority", "scheduler.options.ageing_s=0"],  # first come, first served
        "fair": ["scheduler=fair"],
        "fcfs": ["scheduler.queue=fcfs"],
    }.items():
        requests = served(tmp_path / name, *overrides)
        ttft[name] = {column: requests.groupby(column)["ttft"].mean() for column in ("priority", "tenant")}
    assert ttft["strict"]["priority"][0] < ttft["aged"]["priority"][0] / 2
    assert ttft["fair"]["tenant"][1] < ttft["fcfs"]["tenant"][1] / 2, "the tenant with few requests"
    pd.testing.assert_series_equal(ttft["aged"]["tenant"], ttft["fcfs"]["tenant"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["scheduler=sjf", "scheduler.options.error=1"], "scheduler.options.error: policy=sjf has no such setting"),
        (["scheduler.options.ageing_s=1"], "scheduler.options.ageing_s: policy=mixed has no such setting"),
        (["scheduler=edf", "scheduler.options.ttft_s=-1"], "scheduler.options.ttft_s=-1: must be >= 0 and <= 1e6"),
        (["scheduler=fair", "scheduler.options=3"], "scheduler.options=3: must be a group of keys"),
        (["scheduler=priority", "scheduler.victim=last"], "scheduler.victim='last': policy=priority preempts by its"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        config(*overrides)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_help_explains_the_settings_of_each_policy() -> None:
    text = " ".join(help_text.build([CONF]).split())
    assert "scheduler.options.ageing_s=60.0 seconds of waiting that make up" in text
    assert "scheduler.options.max_queue_delay_s=0.0 how long the first in the queue may be held back" in text
