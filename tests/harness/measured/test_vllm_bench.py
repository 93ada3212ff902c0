"""The reader of what `vllm bench serve` writes: on small files written here, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.measured import load_measured
from tests.harness.measured.builders import bench, refusal


def test_vllm_bench_gaps_add_up(tmp_path: Path) -> None:
    run = load_measured(bench(tmp_path / "b.json", max_concurrency=4))
    assert run.requests["num_prompt_tokens"].tolist() == [20, 30]  # in order of arrival
    assert run.requests["arrival_time"].tolist() == [0, 1]
    assert run.requests["ttft"].tolist() == pytest.approx([0.25, 0.5])
    assert run.requests["e2el"].tolist() == pytest.approx([0.25, 0.9])
    assert run.requests["tpot"].tolist() == pytest.approx([np.nan, 0.2], nan_ok=True)
    assert any("max_concurrency=4" in note for note in run.notes)


def test_vllm_bench_refuses_what_is_not_whole(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    assert "1 of 2 requests failed, first with: E: no" in refusal(bench(path, errors=["", "Traceback\nE: no"]))
    message = refusal(bench(path, start_times="remove", itls="remove"))
    assert "no list itls, start_times (there: input_lens, output_lens, ttfts, errors)" in message
    assert "ttfts 1" in refusal(bench(path, ttfts=[0.5]))
    assert "1 of 2 requests failed or are incomplete; request 2 has no ttfts" in refusal(bench(path, ttfts=[1, None]))
    assert "a request of 0 tokens failed" in refusal(bench(path, output_lens=[3, 0]))
    assert "leave it out" in refusal(bench(path), path)
    path.write_text("{")
    assert "not JSON: " in refusal(f"vllm_bench:{path}")


def test_a_few_failed_requests_cost_themselves(tmp_path: Path) -> None:
    path, several = tmp_path / "b.json", {"input_lens": [20] * 40, "output_lens": [3] * 40, "ttfts": [0.5] * 40}
    several |= {"itls": [[0.1, 0.1]] * 40, "start_times": [float(i) for i in range(40)]}
    several |= {"input_lens": [*[20] * 39, 0], "ttfts": [*[0.5] * 39, 0.0]}
    run = load_measured(bench(path, **several, errors=[*[""] * 39, "Traceback\nE: no"]))
    assert len(run.requests) == 39
    assert any(note.startswith("1 of 40 requests failed, first with: E: no; they are left out") for note in run.notes)
    assert "2 of 40 requests failed" in refusal(bench(path, **several, errors=[*[""] * 38, "x", "y"]))


@pytest.mark.parametrize(
    ("itls", "message"),
    [
        ([[None, 0.1], []], "itls of request 1: None is not a gap in s"),
        ([[0.1, float("nan")], []], "itls of request 1: nan is not a gap in s"),
        ([[0.1], [float("inf")]], "itls of request 2: inf is not a gap in s"),
        ([[0.1, -0.1], []], "itls of request 1: -0.1 is not a gap in s"),
        ([["0.1"], []], "itls of request 1: '0.1' is not a gap in s"),
        ([0.1, 0.2], "itls of request 1: 0.1 is not a list of gaps"),
        ([[0.1], None], "itls of request 2: None is not a list of gaps"),
        ([[], []], "itls of request 1: no gaps between 3 output tokens"),
    ],
    ids=str,
)
def test_vllm_bench_refuses_gaps_that_are_none(itls: list[Any], message: str, tmp_path: Path) -> None:
    assert message in refusal(bench(tmp_path / "b.json", itls=itls))


def test_vllm_bench_tokens_may_come_several_in_a_chunk(tmp_path: Path) -> None:
    run = load_measured(bench(tmp_path / "b.json", output_lens=[3, 4], itls=[[0.4], []]))
    assert run.requests["tpot"].tolist() == pytest.approx([0, 0.2])
    assert "1 requests with several output tokens came in one piece: their TPOT counts as 0" in run.notes
