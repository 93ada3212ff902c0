"""Readers of measured runs: on small files written here, on the public ones where they are, and what they refuse."""

from __future__ import annotations

import json
import reprlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from harness.measured import READERS, load_measured
from harness.measured.measured_run import queued_times, seen_times, with_latencies
from harness.results.tables import DECISIONS
from harness.validation.error_statistics import statistics
from tests.harness.builders import GROUND_TRUTH
from tests.harness.measured.builders import (
    change_summary,
    edit_lines,
    needs_ground_truth,
    pretend_measured,
    refusal,
    write_distserve,
    write_llmservingsim,
)

# -- llmservingsim ----------------------------------------------------------------------------------------------------


def test_llmservingsim_times_are_put_on_one_clock(tmp_path: Path) -> None:
    folder, workload = write_llmservingsim(tmp_path)
    run = load_measured(f"llmservingsim:{folder}", str(workload))
    table = run.requests
    assert table["arrival_time"].tolist() == pytest.approx([0, 0.1, 0.3])
    assert table["queued_time"].tolist() == pytest.approx([0, 0.2, 0.4])
    assert table["ttft"].tolist() == pytest.approx([0.2, 0.4, 0.5])
    assert table["tpot"].tolist() == pytest.approx([0.1, np.nan, 0.1], nan_ok=True)
    assert table["queue_time"].tolist() == pytest.approx([0, 0.3, 0.2])
    queued = with_latencies(table, "queued")
    assert queued["ttft"].tolist() == pytest.approx([0.2, 0.3, 0.4])
    assert queued["e2el"].tolist() == pytest.approx([0.6, 0.3, 1.4])
    assert [len(ids) for ids in run.trace.table["token_ids"]] == [100, 40, 60]
    assert run.trace.table["num_output_tokens"].tolist() == [5, 1, 11]
    assert run.settings["max_num_seqs"] == 128 and run.engine == "vLLM 0.19.0"


def test_llmservingsim_ticks_count_from_the_start_of_the_engine(tmp_path: Path) -> None:
    run = load_measured(f"llmservingsim:{write_llmservingsim(tmp_path, kv_cache_pct=50.0)[0]}")
    assert run.series["time"].tolist() == pytest.approx([0.5, 1.5])
    assert run.series["kv_cache_usage"].tolist() == [0.5, 0.0]
    assert "token_ids" not in run.trace.table and any("prefix cache" in note for note in run.notes)


def test_llmservingsim_kv_use_of_zero_throughout_is_unknown(tmp_path: Path) -> None:
    run = load_measured(f"llmservingsim:{write_llmservingsim(tmp_path)[0]}")
    assert run.series["kv_cache_usage"].isna().all() and run.series["num_running"].tolist() == [2, 1]
    (tmp_path / "timeseries.csv").unlink()
    assert load_measured(f"llmservingsim:{tmp_path}").series.empty


def test_llmservingsim_refuses_what_is_not_whole(tmp_path: Path) -> None:
    folder, workload = write_llmservingsim(tmp_path)
    file = folder / "requests.jsonl"
    name, text = f"llmservingsim:{folder}", file.read_text()
    edit_lines(file, 1, first_token_ts=None, last_token_ts="remove")
    assert refusal(name).endswith(
        "1 of 3 requests failed or are incomplete; request 2 has no first_token_ts, last_token_ts"
    )
    file.write_text(text.replace("queued_ts", "queue"))
    assert "no field queued_ts; there are request_id, input_toks" in refusal(name)
    file.write_text(text + "x\n")
    assert "line 4 is not a JSON object" in refusal(name)
    file.write_text(" \n")
    assert "the file is empty" in refusal(name)
    file.write_text(text)
    edit_lines(file, 2, last_token_ts=1005.7)
    assert "finish_time before first_token_time in 1 of 3 requests, first in request 3" in refusal(name)
    file.write_text(text)
    edit_lines(workload, 0, output_toks=6)
    assert "not the workload of this run" in refusal(name, workload)
    edit_lines(workload, 0, output_toks=5, input_tok_ids=[1])
    assert "input_tok_ids of line 1 must be a list of 100" in refusal(name, workload)
    (folder / "meta.json").write_text(json.dumps({"engine_kwargs": [1]}))
    assert (
        "meta.json: it, or one of engine_kwargs, resolved_config, kv_cache, hardware in it, is not a JSON object"
        in refusal(name)
    )
    (folder / "meta.json").write_text("{}")
    assert "started_at in meta.json" in refusal(name)
    (folder / "meta.json").unlink()
    assert "meta.json: cannot be read: No such file" in refusal(name)
    assert "no such folder" in refusal(f"llmservingsim:{folder}/x")


@pytest.mark.parametrize("ids", [None, "remove", "text", [1], [0.5] * 100, [None] * 100, [-1] * 100, [2**40] * 100])
def test_llmservingsim_refuses_prompts_that_are_no_token_ids(ids: Any, tmp_path: Path) -> None:
    folder, workload = write_llmservingsim(tmp_path)
    edit_lines(workload, 0, input_tok_ids=ids)
    message = refusal(f"llmservingsim:{folder}", workload)
    there = "None" if ids == "remove" else reprlib.repr(ids)
    assert message == f"{workload}: input_tok_ids of line 1 must be a list of 100 token ids, not {there}"


@needs_ground_truth
@pytest.mark.parametrize("model", ["Llama-3.1-8B", "Qwen3-32B"])
def test_latencies_from_the_queue_are_the_published_ones(model: str) -> None:
    folder = GROUND_TRUTH / "llmservingsim_vllm" / "RTXPRO6000" / model
    run = load_measured(f"llmservingsim:{folder}")
    found = statistics(with_latencies(run.requests, "queued"))
    published = {}
    for line in (folder / "llmservingsim_vs_vllm_summary.txt").read_text().splitlines():
        words = line.split()
        if words and words[0] in ("TTFT", "TPOT", "Latency"):
            published[words[0].replace("Latency", "e2el").lower(), words[1].lower()] = float(words[2])
    assert len(published) == 15
    for key, value in published.items():
        assert found[key] == pytest.approx(value, abs=0.051), key
    from_arrival = statistics(run.requests)
    assert from_arrival["ttft", "mean"] - found["ttft", "mean"] > 20  # ms: the definitions are not the same


# -- distserve --------------------------------------------------------------------------------------------------------


def made_up_requests() -> pd.DataFrame:
    times = {"arrival_time": [7.0, 8.0, 9.0], "first_token_time": [7.5, 8.1, 9.1], "finish_time": [9.5, 8.1, 9.2]}
    return pd.DataFrame({**times, "num_prompt_tokens": [10, 20, 30], "num_output_tokens": [5, 1, 2]})


def test_distserve_requests_come_out_in_order_of_arrival(tmp_path: Path) -> None:
    path, workload = write_distserve(tmp_path / "m.exp", made_up_requests()), tmp_path / "w.exp"
    lengths = [{"prompt_len": p, "output_len": o, "start_time": 0} for p, o in ((10, 5), (20, 1), (30, 2))]
    workload.write_text(json.dumps(lengths))
    run = load_measured(f"distserve:{path}", str(workload))
    assert run.requests["arrival_time"].tolist() == [0, 1, 2]
    assert run.requests["num_prompt_tokens"].tolist() == [10, 20, 30]
    assert run.requests["ttft"].tolist() == pytest.approx([0.5, 0.1, 0.1])
    assert run.requests["tpot"].tolist() == pytest.approx([0.5, np.nan, 0.1], nan_ok=True)
    assert run.requests["e2el"].tolist() == pytest.approx([2.5, 0.1, 0.2])
    assert run.requests[["queue_time", "num_preemptions", "num_cached_tokens"]].isna().all(axis=None)
    workload.write_text(json.dumps(lengths[::-1]))
    assert "not the workload of" in refusal(f"distserve:{path}", workload)


def test_distserve_refuses_what_is_not_whole(tmp_path: Path) -> None:
    table = made_up_requests()
    path = tmp_path / "m.exp"
    name = f"distserve:{path}"
    write_distserve(path, table.drop(columns="finish_time").assign(finish_time=[9.5, np.nan, 9.2]))
    path.write_text(path.read_text().replace("nan", "None"))
    assert "1 of 3 requests failed or are incomplete" in refusal(name)
    write_distserve(path, table.assign(num_output_tokens=[5, 0, 2]))
    assert "a request of 0 tokens failed" in refusal(name)
    path.write_text("[]\n")
    assert "holds no request" in refusal(name)
    path.write_text("import os\n")
    assert "line 1 is not a Python list of dicts" in refusal(name)
    path.write_text("[{'prompt_len': 3}]\n")
    assert "no field output_len, issue_time, first_token_time, complete_time; there are prompt_len" in refusal(name)
    assert "no such file" in refusal(f"distserve:{tmp_path}/x")


@needs_ground_truth
def test_distserve_means_are_those_in_the_file() -> None:
    folder = GROUND_TRUTH / "distserve_vllm_opt13b"
    for name in ("100-1", "200-2", "250-2.5", "300-3"):
        path = folder / f"measured-vllm-{name}.exp"
        run = load_measured(f"distserve:{path}", str(folder / f"workload-vllm-{name}.exp"))
        said = dict(line.strip().split(": ") for line in path.read_text().splitlines()[2:-1])
        found = statistics(run.requests)
        assert found["ttft", "mean"] == pytest.approx(float(said["avg_ttft_ms"]))
        assert found["tpot", "mean"] == pytest.approx(float(said["avg_tpot_ms"]))


# -- result folders ---------------------------------------------------------------------------------------------------


def test_a_result_folder_comes_with_its_trace_and_contents(tmp_path: Path) -> None:
    pretend_measured(tmp_path, "trace=shared_prefix", "trace.num_requests=60", "num_blocks=600", "arrival.rate=50")
    run = load_measured(f"run:{tmp_path}")
    assert run.own is not None and "hash_ids" in run.trace.table
    assert run.requests["arrival_time"].iloc[0] == 0 and len(run.requests) == 60
    assert run.requests["num_cached_tokens"].sum() > 0
    assert (run.requests["queued_time"] <= run.requests["first_scheduled_time"]).all()
    assert run.series["kv_cache_usage"].between(0, 1).all() and run.series["num_running"].max() > 1


def test_requests_out_of_order_come_out_in_order_of_arrival(tmp_path: Path) -> None:
    overrides = ["trace=sharegpt_multiturn", "trace.num_requests=60", "arrival=sessions", "arrival.rate=5"]
    pretend_measured(tmp_path, *overrides)
    run = load_measured(f"run:{tmp_path}")
    assert run.own is not None and run.own.rows.tolist() != sorted(run.own.rows.tolist())
    assert run.requests["arrival_time"].is_monotonic_increasing
    prompts = run.own.result.requests["num_prompt_tokens"].to_numpy()[run.own.rows]
    assert run.trace.table["num_prompt_tokens"].tolist() == run.requests["num_prompt_tokens"].tolist() == list(prompts)


def test_a_result_folder_that_cannot_be_compared_with_is_refused(tmp_path: Path) -> None:
    pretend_measured(tmp_path, "trace.num_requests=20")
    name = f"run:{tmp_path}"
    saved = (tmp_path / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(saved.replace("seed: 0", "seed: 1"))
    assert "no longer the one that this run replayed" in refusal(name)
    (tmp_path / "config.yaml").write_text(saved)
    change_summary(tmp_path, complete=False)
    assert "interrupted with 20 of 20 requests finished" in refusal(name)
    change_summary(tmp_path, complete=True, simulated=True)
    assert "a simulation, not a measured run" in refusal(name)
    assert "leave it out" in refusal(name, tmp_path)


def test_a_result_folder_whose_tables_lack_a_column_or_its_type_is_refused(tmp_path: Path) -> None:
    pretend_measured(tmp_path, "trace.num_requests=5")
    table = pd.read_parquet(tmp_path / "steps.parquet")
    for name in DECISIONS:
        for damaged in (table.drop(columns=name), table.assign(**{name: 1.5}), table.assign(**{name: "1"})):
            damaged.to_parquet(tmp_path / "steps.parquet")
            assert refusal(f"run:{tmp_path}").endswith(f"steps.parquet: no column of whole numbers: {name}")
    table.to_parquet(tmp_path / "steps.parquet")
    requests = pd.read_parquet(tmp_path / "requests.parquet")
    wrong: tuple[Any, ...] = (1, None, [["finished"]] * len(requests))
    for statuses in wrong:
        requests.assign(status=statuses).to_parquet(tmp_path / "requests.parquet")
        assert refusal(f"run:{tmp_path}").endswith("requests.parquet: no column of text: status")
    requests.assign(ttft=1.0, arrival_time="1").to_parquet(tmp_path / "requests.parquet")
    assert refusal(f"run:{tmp_path}").endswith("requests.parquet: no column of numbers: arrival_time")


@pytest.mark.parametrize("name", ["vidur:x", "run:", "outputs/a"])
def test_unknown_kinds_are_refused_with_those_there_are(name: str) -> None:
    assert refusal(name).endswith(f"must be <kind>:<path>, the kind one of {', '.join(READERS)}")


def test_requests_are_queued_at_once_or_at_the_end_of_the_step() -> None:
    steps = pd.DataFrame({"start_time": [1.0, 2.0, 5.0], "duration": [1.0, 2.0, 1.0]})
    arrivals = np.array([0.5, 1.0, 1.5, 2.0, 2.5, 4.0, 4.5, 7.0])
    assert queued_times(arrivals, steps).tolist() == [0.5, 1.0, 2.0, 2.0, 4.0, 4.0, 4.5, 7.0]


def test_requests_are_seen_at_the_start_of_the_step_in_which_they_first_run_or_wait() -> None:
    """Two come while a plan of two steps runs, one is refused, and one comes when the engine is idle."""
    steps = pd.DataFrame({"start_time": [1.0, 2.0, 3.0, 4.0, 9.0], "duration": [1.0] * 5})
    steps = steps.assign(num_running=[1, 1, 2, 1, 1], num_waiting=[0, 0, 1, 0, 0])
    issued, finish = np.array([2.5, 1.0, 1.5, 1.2, 9.0]), np.array([5.0, 4.0, 4.0, np.nan, 10.0])
    assert seen_times(issued, finish, steps).tolist() == [3.0, 1.0, 3.0, 1.2, 9.0]
