"""Requests that were rejected or cut short: in the verdict, the SLO, the table and the page, with the reason."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from harness import run
from harness.config import MetricsConfig, SloConfig
from harness.figures.pages.text import page_text
from harness.results.measures.slo import beyond_limits
from harness.results.metrics import summarize
from harness.results.stored.files import write_results
from harness.results.summary import print_summary
from harness.studies.comparison.comparison import write_comparison
from harness.studies.sweeps.job_lines import result_text
from tests.harness.results.builders import META, ToyRequest, run_toy_engine

BLOCKS_OF_16 = 100
CONFIG: dict[str, Any] = {**META["config"], "max_model_len": None, "model": {"max_position_embeddings": 4000}}


def summary_of(num_rejected: int, num_cut: int = 0, **slo: Any) -> dict[str, Any]:
    """Of 40 requests a second apart."""
    rejected = [ToyRequest(float(i), 2000, 5) for i in range(num_rejected)]
    others = [ToyRequest(i + 0.5, 10, 5) for i in range(40 - num_rejected)]
    result = run_toy_engine([*rejected, *others], num_blocks=BLOCKS_OF_16)
    result.requests.loc[result.requests.index[-num_cut or 40 :], "num_requested_tokens"] = 9
    refused = "a prompt of 2000 tokens and its output exceed the limit of 1600 tokens"
    result.requests["error"] = [refused if status == "rejected" else None for status in result.requests["status"]]
    return summarize(replace(result, meta={**META, "config": CONFIG}), MetricsConfig(slo=SloConfig(**slo)))


def printed(summary: dict[str, Any]) -> str:
    stream = io.StringIO()
    print_summary(summary, Console(file=stream, width=80))
    return " ".join(stream.getvalue().split())


@pytest.mark.parametrize(
    ("rejected", "cut", "text"),
    [(20, 0, "20 of 40 requests rejected"), (0, 3, "3 of 40 requests cut short"),
     (23, 17, "23 of 40 requests rejected, 17 cut short"), (40, 0, "40 of 40 requests rejected"),
     (1, 1, "1 of 40 requests rejected, 1 cut short")],
)  # fmt: skip
def test_a_run_that_did_not_serve_all_says_so_with_the_reason_and_what_to_set(
    rejected: int, cut: int, text: str, tmp_path: Path
) -> None:
    summary = summary_of(rejected, cut, ttft_ms=1e6)
    shown = printed(summary)
    assert f"NOT ALL SERVED {text}" in shown and "SLO not met" in shown and "FAIL" in shown
    assert "the KV pool of a server holds 1,600 tokens: a larger num_blocks" in shown
    if rejected:
        were = "request was" if rejected == 1 else "requests were"
        assert f"{rejected} {were} rejected: a prompt of 2000 tokens and its output exceed" in shown
    assert summary["slo_met"] is False and summary["slo_ttft_attainment"] == (40 - rejected - cut) / 40
    assert summary["goodput_share"] == (40 - rejected - cut) / 40
    if rejected < 40:
        assert text in result_text(summary)


def test_a_few_misses_are_within_the_percentile() -> None:
    for num_rejected, met in ((1, True), (3, False)):
        summary = summary_of(num_rejected, ttft_ms=1e6, percentile=95.0)
        assert summary["slo_met"] is met
        assert ("FAIL" in printed(summary)) is not met


def test_a_run_that_served_all_says_nothing() -> None:
    summary = summary_of(0, ttft_ms=1e6)
    assert "NOT ALL" not in printed(summary) and summary["slo_met"] is True
    assert not any("rejected" in note or "cut short" in note for note in summary["notes"])


@pytest.mark.long
def test_the_key_that_moves_the_limit_is_named() -> None:
    requests = [{"prompt": 50, "output": 4}, {"prompt": 3000, "output": 4}]
    for overrides, key in (
        (["max_model_len=2000"], "max_model_len=2000 is the limit"),
        (["num_blocks=100"], "holds 1,600 tokens: a larger num_blocks"),
        (["model=tiny", "model.max_position_embeddings=1024"], "1,024 positions, model.max_position_embeddings"),
    ):
        table = pd.DataFrame(
            {"num_prompt_tokens": [each["prompt"] for each in requests], "num_output_tokens": 4, "arrival_time": [0, 1]}
        )
        found = run("arrival=trace", *overrides, trace=table)
        assert any(key in note for note in found.summary["notes"]), overrides
        assert "1 of 2 requests rejected" in repr(found)
        assert "NOT ALL SERVED" in found._repr_html_()


def test_pages_and_comparisons_mark_it(tmp_path: Path) -> None:
    for name, rejected in (("some", 20), ("none", 0)):
        requests = [ToyRequest(float(i), 2000 if i < rejected else 10, 5) for i in range(40)]
        config = {**CONFIG, "max_num_seqs": 64 + rejected}
        result = replace(run_toy_engine(requests, num_blocks=BLOCKS_OF_16), meta={**META, "config": config})
        write_results(result, summarize(result, MetricsConfig()), tmp_path / name)
    page = page_text(tmp_path / "some")
    assert "Not all served:" in page and "20 of 40 requests rejected" in page
    assert "Not all served:" not in page_text(tmp_path / "none")
    stream = io.StringIO()
    folders = [tmp_path / "some", tmp_path / "none"]
    write_comparison(folders, tmp_path / "out", console=Console(file=stream, width=100))
    text = stream.getvalue()
    assert "84 !" in text and "! 84: 20 of 40 requests rejected" in text and "64 !" not in text
    assert "1 not all served" in (tmp_path / "out" / "report.html").read_text()


def test_requests_that_were_not_served_in_full_are_beyond_every_limit() -> None:
    requests = pd.DataFrame(
        {
            "status": [*["finished"] * 4, "rejected"],
            "ttft": [0.1, 0.5, 0.6, 0.1, None],
            "tpot": [0.01, None, 0.05, 0.01, None],
            "num_output_tokens": [5, 1, 5, 4, 0],
            "num_requested_tokens": [5, 1, 5, 5, 5],
        }
    )
    slow = beyond_limits(requests, SloConfig(ttft_ms=500, tpot_ms=40))
    assert {name: flags.tolist() for name, flags in slow.items()} == {
        "ttft": [False, False, True, True, True],
        "tpot": [False, False, True, True, True],
    }


def test_a_prefix_cache_is_explained_only_where_it_found_nothing() -> None:
    served = run("trace.num_requests=5", "plots=false", "progress=false")
    for hits in (0.0, 0.4):  # a server may know prompts of another run
        shown = replace(served, summary=served.summary | {"prompts_share": False, "prefix_cache_hit_rate": hits})
        explained = hits == 0
        assert ("begin alike" in printed(shown.summary)) == ("begin alike" in shown.report()) == explained


@pytest.mark.parametrize("complete", [True, False])
def test_a_run_that_came_to_a_standstill_says_so(complete: bool) -> None:
    result = run_toy_engine([ToyRequest(float(i), 10, 5) for i in range(4)], num_blocks=BLOCKS_OF_16, until_s=3.0)
    assert (result.requests["status"] == "unfinished").sum() == 1
    summary = summarize(replace(result, meta={**META, "config": CONFIG}, complete=complete), MetricsConfig())
    assert any("1 request was left unfinished: the run came" in note for note in summary["notes"]) == complete
    assert ("NOT ALL SERVED 1 of 4 requests unfinished" in printed(summary)) == complete
