"""Readers of what load generators record: on files that they wrote of our simulated server, and on tables made here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.measured import load_measured
from tests.harness.measured.builders import FILES, NAMES, TABLE, edit_lines, refusal


def means_of_guidellm(path: Path) -> dict[str, float]:
    metrics = json.loads(path.read_text())["benchmarks"][0]["metrics"]
    names = {"ttft": "time_to_first_token_ms", "itl": "inter_token_latency_ms", "tokens": "output_token_count"}
    return {ours: metrics[name]["successful"]["mean"] for ours, name in names.items()}


def means_of_aiperf(path: Path) -> dict[str, float]:
    lines = [json.loads(line)["metrics"] for line in path.read_text().splitlines()]
    names = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "e2el": "request_latency"}
    return {ours: sum(line[name]["value"] for line in lines) / len(lines) for ours, name in names.items()}


@pytest.mark.parametrize(
    ("file", "means"),
    [("guidellm.json", means_of_guidellm), ("aiperf.jsonl", means_of_aiperf)],
    ids=["guidellm", "aiperf"],
)
def test_latencies_are_those_that_the_tool_says(file: str, means: Any) -> None:
    run = load_measured(f"{file.partition('.')[0]}:{FILES / file}")
    assert len(run.requests) == 30 and run.requests["num_prompt_tokens"].between(20, 200).all()
    found = {name: 1e3 * run.requests[name].mean() for name in ("ttft", "tpot", "e2el")}
    decoding = run.requests["finish_time"] - run.requests["first_token_time"]
    found["itl"] = 1e3 * decoding.sum() / (run.requests["num_output_tokens"] - 1).sum()
    found["tokens"] = run.requests["num_output_tokens"].mean()
    expected = means(FILES / file)
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-4)


def test_a_table_has_our_columns_or_those_it_is_told(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(TABLE)
    run = load_measured(f"csv:{path}", columns=NAMES)
    ours = TABLE.replace("sent_at", "arrival_time").replace("prompt", "num_prompt_tokens")
    path.write_text(ours.replace("ttft_ms", "first_token_time").replace("500", "11.5").replace("250", "10.25"))
    assert run.requests.equals(load_measured(f"csv:{path}").requests)
    assert run.requests["num_prompt_tokens"].tolist() == [20, 30]  # in order of arrival
    assert run.requests["ttft"].tolist() == pytest.approx([0.25, 0.5])
    assert run.requests["e2el"].tolist() == pytest.approx([0.25, 0.9])


@pytest.mark.parametrize(
    ("old", "new", "names", "message"),
    [
        ("", "", {}, "no column arrival_time; there are sent_at, "),
        ("e2el", "end", NAMES, "no column finish_time or e2el; there are sent_at, .*; see validation.columns"),
        ("e2el", "end", NAMES | {"ended": "finish_time"}, "no column ended"),
        ("0.9", "soon", NAMES, "e2el of request 1 is no number"),
        ("0.9", "1e300", NAMES, "e2el of request 1 is no number"),
        ("30,3", "0,3", NAMES, "num_prompt_tokens of request 1 is 0"),
        ("0.9", "0.1", NAMES, "finish_time before first_token_time"),
    ],
)  # fmt: skip
def test_tables_that_are_not_whole_are_refused(
    old: str, new: str, names: dict[str, str], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(TABLE.replace(old, new))
    with pytest.raises(Exception, match=message):
        load_measured(f"csv:{path}", columns=names)


def test_failed_requests_of_aiperf_are_left_out_and_warm_up_is_none(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text((FILES / "aiperf.jsonl").read_text())
    edit_lines(path, 3, error={"code": 500, "message": "no"})
    edit_lines(path, 4, metadata={"benchmark_phase": "warmup"})
    run = load_measured(f"aiperf:{path}")
    assert len(run.requests) == 28 and any("1 of 29 requests failed" in note for note in run.notes)
    edit_lines(path, 5, error={"code": 500})
    assert "2 of 29 requests failed" in refusal(f"aiperf:{path}")


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ({"errored": [{}, {}]}, "2 of 32 requests failed"),
        ({"errored": [{}], "incomplete": [{}]}, "2 of 32 requests failed"),
        ({"errored": 1, "successful": 7}, "holds no request"),
        ({"successful": [{"info": 0, "prompt_tokens": 5}]}, "request 1 has no arrival_time, first_token_time"),
    ],
)
def test_requests_of_guidellm_that_are_not_whole_are_refused(
    requests: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "g.json"
    document = json.loads((FILES / "guidellm.json").read_text())
    document["benchmarks"][0]["requests"].update(requests)
    path.write_text(json.dumps(document))
    assert message in refusal(f"guidellm:{path}")


def test_other_files_have_no_columns_to_name_and_no_workload() -> None:
    name = f"aiperf:{FILES / 'aiperf.jsonl'}"
    with pytest.raises(Exception, match=r"validation.columns: aiperf files"):
        load_measured(name, columns=NAMES)
    assert "leave it out" in refusal(name, FILES)


def inference_perf(number: int, **changes: object) -> dict[str, object]:
    """A request as inference-perf 0.7 writes it; the metrics of a streamed answer."""
    start = 100.0 + number
    response = {
        "output_tokens": 4, "server_usage": {"prompt_tokens": 20 + number, "completion_tokens": 3},
        "response_chunks": [], "chunk_times": [start + 0.2, start + 0.7],
        "output_token_times": [start + 0.25, start + 0.45, start + 0.65],
    }  # fmt: skip
    info = {"request_metrics": {"text": {"input_tokens": 18}}, "response_metrics": response, "input_tokens": 18}
    request = {"start_time": start, "end_time": start + 0.9, "request": "{}", "response": "", "info": info}
    return {**request, "error": None, **changes}


def test_requests_of_inference_perf_have_the_times_of_their_tokens(tmp_path: Path) -> None:
    path = tmp_path / "per_request_lifecycle_metrics.json"
    failed = inference_perf(30, error={"error_type": "http", "error_msg": "503"}, info={})
    path.write_text(json.dumps([*map(inference_perf, range(30)), failed]))
    run = load_measured(f"inference_perf:{path}")
    assert run.requests["num_prompt_tokens"].tolist() == [*range(20, 50)]
    assert set(run.requests["num_output_tokens"]) == {3} and "1 of 31 requests failed" in run.notes[1]
    assert run.requests["ttft"].tolist() == pytest.approx([0.25] * 30)
    assert run.requests["tpot"].tolist() == pytest.approx([0.2] * 30)
    older = {"input_tokens": 18, "output_tokens": 2, "output_token_times": [100.5, 100.75]}
    path.write_text(json.dumps([inference_perf(0, info=older)]))
    old = load_measured(f"inference_perf:{path}").requests
    assert old[["num_prompt_tokens", "num_output_tokens", "ttft", "tpot"]].to_numpy().tolist() == [[18, 2, 0.5, 0.25]]
    path.write_text(json.dumps([inference_perf(0, info={**older, "output_token_times": []})]))
    assert "first_token_time" in refusal(f"inference_perf:{path}")
    path.write_text(json.dumps({"successes": {}}))
    assert "no list of requests with info" in refusal(f"inference_perf:{path}")
