"""What is written in the formats of other tools is what our readers of these tools' files find."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config import MetricsConfig
from harness.measured import llm_d, load_measured
from harness.results.exports import export
from harness.results.metrics import summarize
from harness.results.stored.files import write_results
from harness.results.stored.vllm_json import vllm_document
from harness.results.tables import RunResult
from tests.harness.results.builders import heavy_tailed_requests, run_toy_engine
from tests.selection import examples

KINDS = ("guidellm", "aiperf", "inference_perf")
ENDED_S = 1.8e9


def run_of(seed: int, rate: float, *, knows_gaps: bool) -> tuple[RunResult, dict[str, Any]]:
    """A run whose client was late, with one request that failed; with the gaps of each request, or without them."""
    result = run_toy_engine(heavy_tailed_requests(40, rate=rate, seed=seed))
    rng, requests = np.random.default_rng(seed), result.requests.copy()
    lag = rng.uniform(0, 1, len(requests)) * requests["ttft"]
    requests["replay_lag"] = lag
    requests.loc[7, ["first_token_time", "finish_time", "ttft", "tpot", "e2el"]] = np.nan
    requests["status"] = requests["status"].astype(str)
    requests.loc[7, ["status", "error"]] = "aborted", "timeout: no end within 1 s"
    spans = (requests["finish_time"] - requests["first_token_time"]).to_numpy()
    counts = requests["num_output_tokens"].to_numpy() - 1
    gaps = [_gaps(rng, span, count) for span, count in zip(spans, counts, strict=True)] if knows_gaps else None
    changed = RunResult(
        requests, result.steps, result.gaps, result.num_blocks, result.block_size, True,
        {**result.meta, "run_time_s": float(np.nanmax(requests["finish_time"]))}, itls=gaps,
    )  # fmt: skip
    return changed, summarize(changed, MetricsConfig())


def _gaps(rng: np.random.Generator, span_s: float, count: int) -> list[float]:
    if count < 1 or np.isnan(span_s):
        return []
    parts = rng.uniform(0.1, 1, count)
    return list(span_s * parts / parts.sum())


def check(path: str, requests: pd.DataFrame) -> None:
    done = requests[requests["status"] == "finished"]
    sent = (done["arrival_time"] + done["replay_lag"]).sort_values(kind="stable")
    done = done.loc[sent.index]
    found = load_measured(path).requests
    columns = ["num_prompt_tokens", "num_output_tokens"]
    assert (found[columns].to_numpy() == done[columns].to_numpy()).all()
    for name, lag in (("ttft", done["replay_lag"]), ("e2el", done["replay_lag"]), ("tpot", 0.0)):
        expected = (done[name] - lag).to_numpy()
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=2e-6, err_msg=f"{path} {name}")
    np.testing.assert_allclose(found["arrival_time"], sent - sent.iloc[0], rtol=0, atol=1e-6)


@examples(4)
@given(st.integers(0, 1000), st.sampled_from([1.0, 20.0]), st.booleans())
def test_what_is_written_is_read_as_the_same_run(seed: int, rate: float, knows_gaps: bool) -> None:
    result, summary = run_of(seed, rate, knows_gaps=knows_gaps)
    with TemporaryDirectory() as folder:
        for kind in KINDS:
            name, text = export(kind, result, summary, ENDED_S)
            Path(folder, name).write_text(text)
            check(f"{kind}:{Path(folder, name)}", result.requests)
        if result.itls is not None:
            path = Path(folder, "vllm_bench.json")
            path.write_text(json.dumps(vllm_document(result, summary, result.itls), allow_nan=False))
            check(f"vllm_bench:{path}", result.requests)
        name, text = export("llm_d", result, summary, ENDED_S)
        Path(folder, name).write_text(text)
        found = llm_d.read_aggregates(Path(folder, name))
    done = result.requests[result.requests["status"] == "finished"]
    assert found["completed"] == len(done) == len(result.requests) - 1
    assert found["total_output_tokens"] == pytest.approx(done["num_output_tokens"].sum())
    assert found["output_throughput"] == pytest.approx(summary["output_throughput"])
    for statistic, share in (("median", 50), ("p99", 99), ("p99.9", 99.9)):
        for latency, lag in (("ttft", done["replay_lag"]), ("tpot", 0.0), ("e2el", done["replay_lag"])):
            expected = 1e3 * np.nanpercentile(done[latency] - lag, share)
            assert found[f"{statistic}_{latency}_ms"] == pytest.approx(expected)


def test_aggregates_and_single_requests_of_a_file_agree() -> None:
    """TTFT counts from when a request was sent, in both."""
    result, summary = run_of(3, 5.0, knows_gaps=True)
    assert result.itls is not None
    document = vllm_document(result, summary, result.itls)
    ttfts = [each for each, error in zip(document["ttfts"], document["errors"], strict=True) if not error]
    assert document["mean_ttft_ms"] == pytest.approx(1e3 * np.mean(ttfts))
    assert document["mean_ttft_ms"] < summary["mean_ttft_ms"]
    assert document["p99_ttft_ms"] == pytest.approx(1e3 * np.percentile(ttfts, 99))
    metrics = json.loads(export("guidellm", result, summary, ENDED_S)[1])["benchmarks"][0]["metrics"]
    assert metrics["time_to_first_token_ms"]["successful"]["mean"] == pytest.approx(1e3 * np.mean(ttfts))


def test_exports_are_files_of_the_folder(tmp_path: Path) -> None:
    result, summary = run_of(1, 5.0, knows_gaps=False)
    write_results(result, summary, tmp_path, exports=("aiperf", "llm_d"))
    names = {path.name for path in tmp_path.iterdir()}
    assert names >= {"profile_export.jsonl", "llm_d_report.yaml"} and "guidellm.json" not in names
