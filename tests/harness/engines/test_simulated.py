"""What a simulation says about a profile that prices it, from the configuration on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

from harness.errors import ConfigError
from harness.results.stored.files import read_results
from harness.terminal import run
from tests.harness.builders import GROUND_TRUTH, ROOT, config

PROFILE = ROOT / "simulator" / "profiles" / "amd-epyc" / "tiny" / "tp1"
BUNDLES = GROUND_TRUTH / "llmservingsim_vllm" / "RTXPRO6000"
RUN = ("trace.num_requests=5", "arrival=all_at_once", "plots=false", "progress=false", "cost=profiled")
TINY = (
    "model=tiny", "device=laptop-cpu", "max_num_seqs=64", "max_num_batched_tokens=1024",
)  # fmt: skip


def told(folder: Path, profile: str, *overrides: str) -> list[str]:
    """The notes of a run that are about its profile, but not about how far its steps went."""
    run(config(*RUN, *overrides, f"cost.profile='{profile}'"), folder)
    notes = read_results(folder)[0].meta["notes"]
    return [note for note in notes if "lengths drawn" not in note and "beyond the profile's ranges" not in note]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], None),
        (["block_size=64"], "ran with block_size=16, this run has 64"),
        (["device=h100-80gb"], "microseconds, and was NVIDIA H100 80GB HBM3 profiled?"),
    ],
)
def test_a_run_that_its_profile_was_not_measured_for_says_so(
    overrides: list[str], expected: str | None, tmp_path: Path
) -> None:
    notes = told(tmp_path, str(PROFILE), *TINY, *overrides)
    assert len(notes) == (expected is not None) and all(str(expected) in note for note in notes)


def test_a_profile_in_another_unit_is_refused(tmp_path: Path) -> None:
    shutil.copytree(PROFILE, tmp_path / "tp1")
    tokens = pd.read_csv(PROFILE / "tokens.csv")
    tokens.assign(time_us=tokens["time_us"] / 1e3).to_csv(tmp_path / "tp1" / "tokens.csv", index=False)
    with pytest.raises(ConfigError, match="^cost.profile=.*times the peak of laptop CPU.*microseconds"):
        told(tmp_path / "run", str(tmp_path), *TINY)


def test_a_negative_time_in_a_profile_is_refused(tmp_path: Path) -> None:
    shutil.copytree(PROFILE, tmp_path / "tp1")
    steps = pd.read_csv(PROFILE / "steps.csv")
    steps.assign(time_us=-steps["time_us"]).to_csv(tmp_path / "tp1" / "steps.csv", index=False)
    with pytest.raises(ConfigError, match="^cost.profile=.*: steps: time_us=-943.103 in row 1: must be a number >= 0 "):
        told(tmp_path / "run", str(tmp_path), *TINY)


def test_a_profile_that_was_edited_between_two_runs_is_read_again(tmp_path: Path) -> None:
    shutil.copytree(PROFILE, tmp_path / "tp1")
    settings = config(*RUN, *TINY, f"cost.profile={tmp_path}")
    before = run(settings, tmp_path / "a")["mean_tpot_ms"]
    steps = pd.read_csv(PROFILE / "steps.csv")
    steps.assign(time_us=10 * steps["time_us"]).to_csv(tmp_path / "tp1" / "steps.csv", index=False)
    assert run(settings, tmp_path / "b")["mean_tpot_ms"] > 2 * before


@pytest.mark.skipif(not BUNDLES.exists(), reason="no published bundles at ../shared/ground_truth")
@pytest.mark.parametrize(
    ("model", "folder", "ranks"), [("llama-3.1-8b", "Llama-3.1-8B", 1), ("qwen3-32b", "Qwen3-32B", 2)]
)
def test_published_bundles_fit_the_runs_they_were_measured_for(
    model: str, folder: str, ranks: int, tmp_path: Path
) -> None:
    options = ("device=rtx-pro-6000", "scheduler=vllm", f"tensor_parallel_size={ranks}", "max_num_batched_tokens=2048")
    assert told(tmp_path, f"llmservingsim:{BUNDLES / folder / 'profile'}", f"model={model}", *options) == []


def test_who_comes_while_an_engine_plans_several_steps_waits_for_their_end(tmp_path: Path) -> None:
    waits = {}
    for lookahead in (1, 32):
        overrides = ("trace.num_requests=20", "arrival.rate=5", "plots=false", "progress=false")
        run(config(*overrides, f"engine.max_lookahead_steps={lookahead}"), tmp_path / str(lookahead))
        waits[lookahead] = read_results(tmp_path / str(lookahead))[0].requests["queue_time"].mean()
    assert waits[32] > 4 * waits[1] > 0
