"""The scheduling core under random workloads, against a shadow KV store; and proof that the fuzz catches mutants."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.policies import POLICIES
from engine.core.scheduler_options import SchedulerOptions
from tests.engine.fuzz.campaigns import NUM_SEEDS, campaign, copy_tree, mutate
from tests.engine.fuzz.fuzz_options import ALTERNATIVES, needs_of
from tests.engine.fuzz.fuzz_workloads import for_own_cache, random_workload
from tests.engine.fuzz.mutants.all_mutants import FOR_A_COMMIT, MUTANTS
from tests.engine.fuzz.mutants.mutant import Mutant
from tests.engine.fuzz.soundness import check_workload
from tests.engine.fuzz.workload import Case, Workload
from tests.selection import few


@pytest.mark.parametrize(
    "seed", [*range(7, 15), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(15, 37))]
)
def test_random_workloads_are_sound(seed: int) -> None:
    check_workload(random_workload(seed), seed)


@st.composite
def small_workloads(draw: st.DrawFn) -> Workload:
    """Small enough to shrink to something a person can follow."""
    block_size = draw(st.integers(1, 5))
    stem = draw(st.lists(st.integers(0, 2), min_size=12, max_size=12))
    max_num_seqs = draw(st.integers(1, 6))
    cases = []
    for _ in range(draw(st.integers(1, 6))):
        num_prompt, num_output = draw(st.integers(1, 10)), draw(st.integers(1, 10))
        shared = draw(st.integers(0, num_prompt))
        own = draw(st.lists(st.integers(0, 2), min_size=20, max_size=20))
        tokens = (stem[:shared] + own)[: num_prompt + num_output]
        contents = draw(st.sampled_from(["tokens", "hashes", "none"]))
        abort, num_sequences = draw(st.none() | st.integers(0, 20)), draw(st.integers(1, min(3, max_num_seqs)))
        cases.append(
            Case(tokens, num_prompt, draw(st.integers(0, 10)), contents, abort_step=abort, num_sequences=num_sequences)
        )
    contents = cases[0].contents
    for case in cases:  # hash ids and tokens are two names of one content: a run uses one of them
        if {contents, case.contents} == {"tokens", "hashes"}:
            case.contents = contents
    preemption = draw(st.sampled_from(["recompute", "partial", "swap", "auto"]))
    longest = max(-(-len(case.tokens) // block_size) for case in cases)
    policy = draw(st.sampled_from(sorted(POLICIES)))
    names = sorted({*ALTERNATIVES} - ({"victim"} if POLICIES[policy].chooses_victims else set()))
    options = {
        "policy": policy,
        "watermark": draw(st.sampled_from([0.0, 0.1])),
        "enable_prefix_caching": draw(st.booleans()),
        "preemption": preemption,
        "recompute_token_us": 1.0 if preemption == "auto" else None,
        **{name: ALTERNATIVES[name] for name in draw(st.sets(st.sampled_from(names)))},
        **needs_of(policy),
    }
    workload = Workload(
        cases,
        options=SchedulerOptions(**options),
        block_size=block_size,
        num_blocks=longest + draw(st.integers(1, 8)),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + draw(st.integers(0, 12)),
        num_host_blocks=draw(st.sampled_from([2, 8])) if preemption in ("swap", "auto") else 0,
        transfer_block_us=0.4 * block_size,
    )
    return for_own_cache(workload) if needs_of(policy) else workload


@given(small_workloads())
def test_small_workloads_are_sound(workload: Workload) -> None:
    check_workload(workload)


def check_caught(mutant: Mutant, folder: Path) -> None:
    copy_tree(folder)
    mutate(folder, mutant)
    result = campaign(folder, NUM_SEEDS, mutant.arguments)
    assert result.returncode != 0, "the mutant survived"
    assert result.stdout.startswith("seed "), "it failed before it ran a workload: " + result.stderr


@pytest.mark.parametrize("name", few(FOR_A_COMMIT, 2))
def test_the_fuzz_catches_a_mutant(name: str, tmp_path: Path) -> None:
    (mutant,) = (mutant for mutant in MUTANTS if mutant.name == name)
    check_caught(mutant, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_fuzz_catches_every_mutant(mutant: Mutant, tmp_path: Path) -> None:
    check_caught(mutant, tmp_path)


def test_no_mutant_is_out_of_date(tmp_path: Path) -> None:
    copy_tree(tmp_path)
    for mutant in MUTANTS:
        source = (tmp_path / "engine" / "core" / mutant.file).read_text()
        mutate(tmp_path, mutant)
        (tmp_path / "engine" / "core" / mutant.file).write_text(source)


def test_the_fuzz_passes_a_copy_without_a_fault(tmp_path: Path) -> None:
    copy_tree(tmp_path)
    result = campaign(tmp_path, num_seeds=3)
    assert result.returncode == 0 and "3 workloads sound" in result.stdout, result.stderr
