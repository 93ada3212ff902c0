"""Comparisons with the aggregates of `vllm bench serve` alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments import PLAIN
from harness import run
from harness.errors import MeasuredRunError
from harness.measured.llm_d import read_aggregates
from tests.fuzzing.inputs import LLM_D
from tests.harness.measured.builders import compare, refusal

SENT = ("trace=synthetic", "arrival=closed_loop", "arrival.concurrency=4", "trace.num_requests=30")
LENGTHS = [
    word
    for part, value in (("prompt", 80), ("output", 12))
    for word in (f"trace/lengths@trace.{part}=constant", f"trace.{part}.value={value}")
]


def written(path: Path, **changes: Any) -> str:
    """What the client of vLLM would have written of a simulation of constant lengths."""
    summary = run(*PLAIN, *SENT, *LENGTHS, "cost=roofline").summary
    names = [f"{statistic}_{metric}_ms" for statistic in ("mean", "median", "p99") for metric in ("ttft", "tpot")]
    names += ["duration", "request_throughput", "output_throughput", "total_token_throughput"]
    document = {name: summary[name] for name in names} | {
        "backend": "vllm", "model_id": "Qwen/Qwen3-8B", "completed": 30, "total_input_tokens": 2400,
        "total_output_tokens": 360, "request_rate": "inf", "max_concurrency": 4,
    }  # fmt: skip
    path.write_text(json.dumps(document | changes))
    return f"vllm_bench:{path}"


def test_what_was_simulated_has_no_error_and_what_was_slower_has_its_sign(tmp_path: Path) -> None:
    name = written(tmp_path / "b.json")
    found = compare(name, tmp_path / "out", *SENT[:1])
    assert len(found["errors"]) == 10 and max(abs(row["error_pct"]) for row in found["errors"]) < 1e-6
    assert any("mean lengths" in warning for warning in found["warnings"])
    document = json.loads((tmp_path / "b.json").read_text())
    (tmp_path / "b.json").write_text(json.dumps(document | {"mean_tpot_ms": 1.25 * document["mean_tpot_ms"]}))
    errors = compare(name, tmp_path / "out", *SENT[:1])["errors"]
    assert [row["error_pct"] for row in errors if (row["metric"], row["statistic"]) == ("tpot", "mean")] == [
        pytest.approx(-20)
    ]
    assert "no list input_lens" in refusal(name)  # of which nothing can be fitted to


def test_requests_are_sent_at_the_rate_of_the_client(tmp_path: Path) -> None:
    name = written(tmp_path / "b.json", request_rate=2.0, burstiness=1e6, duration=15.0)  # equal gaps
    found = compare(name, tmp_path / "out", *SENT[:1])
    (duration,) = (row for row in found["errors"] if row["metric"] == "duration")
    assert duration["simulated"] == pytest.approx(29 / 2, rel=0.02)
    assert any("max_concurrency=4 is not simulated" in warning for warning in found["warnings"])


def test_a_file_without_a_number_to_compare_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text(json.dumps({"mean_ttft_ms": 0, "completed": 2, "total_input_tokens": 9, "total_output_tokens": 9}))
    with pytest.raises(MeasuredRunError, match="has no mean, median or percentile"):
        compare(f"vllm_bench:{path}", tmp_path / "out")


@pytest.mark.parametrize("changes", [{"completed": 0}, {"total_input_tokens": None}, {"total_output_tokens": 3}])
def test_files_that_tell_no_workload_are_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(MeasuredRunError, match="no completed requests with total_input_tokens"):
        compare(written(tmp_path / "b.json", **changes), tmp_path / "out")


def test_a_benchmark_report_of_llm_d_has_the_same_aggregates(tmp_path: Path) -> None:
    document = json.loads((Path(written(tmp_path / "b.json").partition(":")[2])).read_text())

    def latency(name: str, scale: float, unit: str) -> dict[str, Any]:
        statistics = {"mean": "mean", "p50": "median", "p99": "p99"}
        return {"units": unit, **{key: document[f"{ours}_{name}_ms"] * scale for key, ours in statistics.items()}}

    rates = {"request_rate": "request", "output_token_rate": "output", "total_token_rate": "total_token"}
    aggregate = {
        "requests": {"total": 32, "failures": 2, "input_length": {"mean": 80.0}, "output_length": {"mean": 12.0}},
        "latency": {"time_to_first_token": latency("ttft", 1e-3, "s"),
                    "time_per_output_token": latency("tpot", 1.0, "ms/token")},
        "throughput": {key: {"mean": document[f"{name}_throughput"]} for key, name in rates.items()},
    }  # fmt: skip
    report = {
        "version": "0.2.1",
        "run": {"time": {"duration": f"PT{document['duration']}S"}},
        "scenario": {"load": {"standardized": {"rate_qps": float("inf"), "concurrency": 4}}},
        "results": {"request_performance": {"aggregate": aggregate}},
    }
    path = tmp_path / "report.yaml"
    path.write_text(yaml.safe_dump(report))
    found = compare(f"llm_d:{path}", tmp_path / "out", *SENT[:1])
    assert len(found["errors"]) == 10 and max(abs(row["error_pct"]) for row in found["errors"]) < 1e-6
    path.write_text(yaml.safe_dump({"version": "0.1", "metrics": {}}))
    with pytest.raises(MeasuredRunError, match="no results.request_performance.aggregate"):
        compare(f"llm_d:{path}", tmp_path / "out")


@pytest.mark.parametrize(
    ("duration", "seconds"), [("PT49.97S", 49.97), ("PT1H2M3.S", 3723), ("PT1.2.3S", None), ("PT.S", None), (5, None)]
)
def test_durations_of_llm_d(duration: Any, seconds: float | None, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({**LLM_D, "run": {"time": {"duration": duration}}}))
    assert read_aggregates(tmp_path / "a.json")["duration"] == seconds
