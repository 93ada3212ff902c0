"""Replays on a real clock through the real engine, on the CPU."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from engine.api.llm_engine import LLMEngine  # noqa: E402
from engine.api.step_report import ExecutedPlan  # noqa: E402
from engine.models.model_config import ModelConfig, hf_config  # noqa: E402
from harness.engines.real import resolve_real  # noqa: E402
from harness.engines.real_replay import Clock, IssueThread  # noqa: E402
from harness.errors import ConfigError  # noqa: E402
from harness.results.stored.files import read_results  # noqa: E402
from harness.studies.machine_profiling import _job, profile  # noqa: E402
from harness.terminal import run  # noqa: E402
from harness.workload.arrivals import ClosedLoop, OpenLoop  # noqa: E402
from harness.workload.token_ids import PromptSource  # noqa: E402
from harness.workload.trace import Trace, trace_table  # noqa: E402
from tests.harness.builders import SMALLEST, config  # noqa: E402

SHORT = ["trace=synthetic", "trace/lengths@trace.prompt=constant", "trace.prompt.value=20"]
TINY = [*SMALLEST, "num_blocks=800", "max_num_batched_tokens=256"]


def test_a_replay_leaves_the_tables_of_a_simulation(tmp_path: Path) -> None:
    lengths = ["trace=synthetic", "trace.num_requests=12"]
    lengths += [f"trace/lengths@trace.{part}=uniform" for part in ("prompt", "output")]
    lengths += ["trace.prompt.low=5", "trace.prompt.high=60", "trace.output.low=1", "trace.output.high=12"]
    common = [*lengths, "arrival.rate=50", "max_num_seqs=8"]
    real = run(config(*common, *TINY), tmp_path / "real")
    simulated = run(config(*common, "num_blocks=800"), tmp_path / "sim")
    assert real["completed"] == simulated["completed"] == 12
    assert (real["simulated"], simulated["simulated"]) == (False, True)
    assert real["total_output_tokens"] == simulated["total_output_tokens"]
    tables = {name: read_results(tmp_path / name)[0] for name in ("real", "sim")}
    for table in ("requests", "steps"):
        columns = {name: getattr(result, table).dtypes.to_dict() for name, result in tables.items()}
        assert columns["real"] == columns["sim"], table
    steps = tables["real"].steps
    parts = steps[["schedule_time", "prepare_time", "execute_time", "sample_time"]]
    assert (parts > 0).all().all() and (steps["transfer_time"] == 0).all()
    assert (parts.sum(axis=1) <= steps["duration"] * 1.001).all()
    assert tables["sim"].steps["execute_time"].isna().all()
    assert tables["real"].requests["replay_lag"].between(0, 5).all()


def test_drafts_are_recorded(tmp_path: Path) -> None:
    lengths = ["trace=synthetic", "trace.num_requests=4", "trace/lengths@trace.prompt=constant"]
    lengths += ["trace/lengths@trace.output=constant", "trace.prompt.value=20", "trace.output.value=60"]
    lookup = ["speculation=ngram", "speculation.prompt_lookup_min=1", "arrival=all_at_once", "max_num_seqs=8"]
    summary = run(config(*lengths, *lookup, *TINY), tmp_path)
    steps = read_results(tmp_path)[0].steps
    assert summary["total_output_tokens"] == 240
    assert steps["num_decode_seqs"].sum() + steps["num_accepted_tokens"].sum() == 4 * 59
    assert 0 < summary["accepted_tokens"] <= summary["drafted_tokens"] == steps["num_drafted_tokens"].sum()


@pytest.mark.parametrize(
    ("settings", "longest"),
    [
        (["max_num_batched_tokens=512"], 300),
        (
            ["max_num_batched_tokens=100", "max_num_seqs=8", "scheduler=trtllm", "scheduler.async_scheduling=false"],
            99,
        ),  # whole prompts
    ],
)
def test_the_warm_up_computes_a_decode_beside_a_prompt(
    settings: list[str], longest: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plans: list[tuple[int, int]] = []
    execute = LLMEngine.execute

    def observed(engine: LLMEngine, now_ns: int) -> ExecutedPlan | None:
        executed = execute(engine, now_ns)
        if executed is not None:
            plans.append((executed.plan.num_decodes, sum(chunk.num_tokens for chunk in executed.plan.prefills)))
        return executed

    monkeypatch.setattr(LLMEngine, "execute", observed)
    summary = run(config("trace.num_requests=1", *TINY, *settings, *SHORT), tmp_path / "out")
    assert {(0, 10), (0, 20), (0, 50), (1, longest)} <= set(plans)
    assert summary["completed"] == 1 and len(read_results(tmp_path / "out")[0].requests) == 1


def test_a_multi_turn_conversation_hits_what_was_really_generated(tmp_path: Path) -> None:
    path = tmp_path / "turns.csv"
    path.write_text("session_id,turn,num_prompt_tokens,num_output_tokens\n0,0,40,20\n0,1,70,10\n0,2,90,5\n")
    summary = run(
        config("trace=csv", f"trace.path={path}", "arrival=sessions", "arrival.think_time=0.05", *TINY),
        tmp_path / "out",
    )
    requests = read_results(tmp_path / "out")[0].requests
    # Of a turn's tokens all but the last were computed: 59 and 79 of them, in blocks of 16.
    assert requests["num_cached_tokens"].tolist() == [0, 48, 64]
    assert summary["completed"] == 3


def test_a_model_that_cannot_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such model folder"):
        run(config(*TINY, "engine.weights=/nowhere"), tmp_path)
    with pytest.raises(ConfigError, match="choose a smaller model, such as model=tiny"):
        run(config("engine=cpu", "model=llama-3.1-70b"), tmp_path)
    with pytest.raises(ConfigError, match="attention backend 'flash'"):
        run(config(*TINY, "engine.attention_backend=flash"), tmp_path)


def weights_folder(folder: Path, **fields: Any) -> str:
    """A model folder without its weights: config.json alone, of a `conf/model` with these fields."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hf_config(fields)))
    return f"engine.weights={folder}"


def model_of(*overrides: str) -> ModelConfig:
    """The model that the real engine would load."""
    return resolve_real(config("engine=cpu", *overrides)).model


@pytest.mark.parametrize(
    ("model", "name", "value"),
    [
        ("tiny", "num_layers", 3),
        ("tiny", "hidden_size", 128),
        ("tiny", "num_attention_heads", 8),
        ("tiny", "num_kv_heads", 4),
        ("tiny", "head_dim", 32),
        ("tiny", "intermediate_size", 512),
        ("tiny", "vocab_size", 1000),
        ("tiny", "tie_word_embeddings", True),
        ("tiny", "max_position_embeddings", 2048),
        ("qwen3-30b-a3b", "num_experts", 64),
        ("qwen3-30b-a3b", "num_experts_per_token", 4),
        ("qwen3-30b-a3b", "moe_intermediate_size", 512),
    ],
)
@pytest.mark.sample(6)
def test_weights_of_other_sizes_are_refused_with_what_to_set(model: str, name: str, value: Any, tmp_path: Path) -> None:
    shape = config(f"model={model}").model.model_dump()
    assert model_of(f"model={model}", weights_folder(tmp_path / "same", **shape)) == ModelConfig.from_shape(shape)
    settings = [f"model={model}", weights_folder(tmp_path / "other", **shape | {name: value})]
    with pytest.raises(ConfigError, match=f"of other sizes than .*{name} is {value} and not {shape[name]}") as caught:
        model_of(*settings)
    assert "\n" not in str(caught.value)
    advice = [word for word in str(caught.value).split() if word.startswith(f"model.{name}=")]
    assert getattr(model_of(*settings, *advice), name) == value


def test_reserved_blocks_are_fewer_than_the_memory_has_room_for(tmp_path: Path) -> None:
    settings = ["engine=cpu", "model=tiny", "max_model_len=64", "max_num_seqs=4", "scheduler.reserved_blocks=16"]
    with pytest.raises(ConfigError, match="reserved_blocks=16: must be < 16, the KV blocks for which there is memory"):
        run(config(*settings), tmp_path)


def test_weights_of_another_model_are_neither_run_nor_profiled(tmp_path: Path) -> None:
    shape = config(*TINY).model.model_dump() | {"num_layers": 2}
    settings = [*TINY, weights_folder(tmp_path / "weights", **shape)]
    with pytest.raises(ConfigError, match="set model.name=... model.num_layers=2$"):
        run(config(*settings), tmp_path / "out")
    with pytest.raises(ConfigError, match="set model.name=... model.num_layers=2$"):
        profile(config("task=profile", *settings, f"profile.out={tmp_path / 'profile'}"), tmp_path / "out")
    assert not (tmp_path / "profile").exists()


def test_arrivals_are_issued_on_time_while_the_engine_is_busy() -> None:
    times = np.arange(20) * 5_000_000
    thread = IssueThread(OpenLoop(times), Clock())
    time.sleep(0.15)  # the engine collects nothing all this while
    now, issued = thread.collect()
    thread.stop()
    assert [each.row for each in issued] == list(range(20))
    assert all(each.arrival_ns <= each.issued_ns <= now for each in issued)
    assert np.median([each.issued_ns - each.arrival_ns for each in issued]) < 20_000_000
    assert "issue" not in {each.name for each in threading.enumerate()}


def test_a_finished_request_of_a_closed_loop_brings_the_next() -> None:
    thread = IssueThread(ClosedLoop(3, 1), Clock())
    rows = []
    while thread.wait():
        now, issued = thread.collect()
        for each in issued:
            rows.append(each.row)
            thread.on_finish(each.row, now)
    thread.stop()
    assert rows == [0, 1, 2]


def test_prompts_are_equal_where_their_hash_ids_are() -> None:
    ids = [np.array([5, 6, 7]), np.array([5, 6, 9])]
    table = trace_table({"num_prompt_tokens": [20, 24], "num_output_tokens": [1, 1], "hash_ids": ids})
    source = PromptSource(Trace("t", table, "made", 8), vocab_size=1000, seed=3)
    one, two = (source.make(row, 0).sequences[0].token_ids for row in (0, 1))
    assert one is not None and two is not None
    assert one[:16] == two[:16] and one[16:] != two[16:20] and (len(one), len(two)) == (20, 24)
    other_seed = PromptSource(Trace("t", table, "made", 8), vocab_size=1000, seed=4).make(0, 0).sequences[0].token_ids
    assert other_seed != one


def test_what_is_collected_was_issued_before_the_time_that_is_returned() -> None:
    thread = IssueThread(OpenLoop(np.arange(2000) * 50_000), Clock())
    previous, seen = 0, 0
    while seen < 2000:
        now, issued = thread.collect()
        issued_at = [each.issued_ns for each in issued]
        assert all(previous <= at <= now for at in issued_at)
        previous, seen = now, seen + len(issued)
    thread.stop()


def test_profiles_time_each_step_on_its_own_also_where_steps_are_planned_ahead() -> None:
    settings = config("engine=cpu", "model=tiny", "scheduler=vllm", "task=profile")
    setup = resolve_real(settings)
    assert setup.engine.async_scheduling and not _job(settings, setup).engine.async_scheduling
