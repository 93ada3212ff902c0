"""The scheduling core under random workloads, against a shadow KV store; and proof that the fuzz catches mutants."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.policy import POLICIES
from engine.core.scheduler_options import SchedulerOptions
from tests.engine.fuzz import check_workload
from tests.engine.workloads import ALTERNATIVES, Request, Workload, random_workload

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seed", range(120))
def test_random_workloads_are_sound(seed: int) -> None:
    check_workload(random_workload(seed), seed)


@st.composite
def small_workloads(draw: st.DrawFn) -> Workload:
    """Small enough to shrink to something a person can follow."""
    block_size = draw(st.integers(1, 5))
    stem = draw(st.lists(st.integers(0, 2), min_size=12, max_size=12))
    requests = []
    for _ in range(draw(st.integers(1, 6))):
        num_prompt, num_output = draw(st.integers(1, 10)), draw(st.integers(1, 10))
        shared = draw(st.integers(0, num_prompt))
        own = draw(st.lists(st.integers(0, 2), min_size=20, max_size=20))
        tokens = (stem[:shared] + own)[: num_prompt + num_output]
        contents = draw(st.sampled_from(["tokens", "hashes", "none"]))
        abort = draw(st.none() | st.integers(0, 20))
        requests.append(Request(tokens, num_prompt, draw(st.integers(0, 10)), contents, abort_step=abort))
    contents = requests[0].contents
    for request in requests:  # hash ids and tokens are two names of one content: a run uses one of them
        if {contents, request.contents} == {"tokens", "hashes"}:
            request.contents = contents
    longest = max(-(-len(request.tokens) // block_size) for request in requests)
    max_num_seqs = draw(st.integers(1, 6))
    return Workload(
        requests,
        options=SchedulerOptions(
            policy=draw(st.sampled_from(sorted(POLICIES))),
            watermark=draw(st.sampled_from([0.0, 0.1])),
            enable_prefix_caching=draw(st.booleans()),
            **{name: ALTERNATIVES[name] for name in draw(st.sets(st.sampled_from(sorted(ALTERNATIVES))))},
        ),
        block_size=block_size,
        num_blocks=longest + draw(st.integers(1, 8)),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + draw(st.integers(0, 12)),
    )


@settings(max_examples=300, deadline=None)
@given(small_workloads())
def test_small_workloads_are_sound(workload: Workload) -> None:
    check_workload(workload)


MUTANTS = {
    "the hash of an evicted block stays in the index": (
        "block_manager.py",
        "del index[block_hash]",
        "pass",
    ),
    "an evicted block keeps its hash": (
        "block_manager.py",
        "hashes[block] = None  # its content is about to be overwritten",
        "pass",
    ),
    "a second reference is not counted": (
        "block_manager.py",
        "shared[block] = shared.get(block, 0) + 1",
        "pass",
    ),
    "a reference is dropped twice": (
        "block_manager.py",
        "findable = [block for block in findable if block not in shared]",
        "pass",
    ),
    "a revived block stays in the free pool": (
        "block_manager.py",
        "                del lru[block]\n",
        "                pass\n",
    ),
    "a preempted sequence keeps a stale block": (
        "block_manager.py",
        "private = reversed(table[num_registered:])",
        "private = reversed(table[num_registered + 1 :])",
    ),
    "a shared last block is written without a copy": (
        "block_manager.py",
        "copy_last = blocks[-1] not in self._lru",
        "copy_last = False",
    ),
    "a block is copied before it is computed": ("block_manager.py", "if blocks[-1] in self._pending:", "if False:"),
    "blocks are found before they are computed": (
        "step_planner.py",
        "self._blocks.register(sequence, start + num_tokens)",
        "self._blocks.register(sequence, sequence.num_tokens)",
    ),
    "the hash leaves out the prefix": ("sequence.py", "chain_hash(hashes[-1] if hashes else 0,", "chain_hash(0,"),
    "growth comes one step late": ("decode_set.py", "return (offset + 1) %", "return (offset + 2) %"),
    "the context sum forgets who left": ("decode_set.py", "        self.num_context_tokens -= length\n", ""),
    "the scattered sum forgets who left": (
        "decode_set.py",
        "self._num_in_order_tokens -= self.sequences.pop(sequence)",
        "self.sequences.pop(sequence)",
    ),
    "what is generated lies in order": ("decode_set.py", "self.num_context_tokens - self._num_in_order_tokens", "0"),
    "prompts never lie scattered": ("decode_set.py", "self._block_size * num_breaks(sequence.block_table)", "0"),
    "the horizon ignores the pool": (
        "decode_set.py",
        "                return ahead\n",
        "                return limit\n",
    ),
    "the horizon ignores the queue": (
        "scheduler.py",
        "if not self._waiting.head_blocked:",
        "if False:",
    ),
    "the bound on running sequences is off by one": (
        "step_planner.py",
        "len(seats) < self._max_num_seqs and budget > 0",
        "len(seats) <= self._max_num_seqs and budget > 0",
    ),
    "a duplicate is lost when the indexed block is evicted": (
        "block_manager.py",
        "self._index[block_hash] = duplicates.pop(0)",
        "del self._index[block_hash]",
    ),
    "a head once blocked stays blocked": (
        "running_set.py",
        "self._blocks.release(sequence)\n        self._waiting.head_blocked = False\n",
        "self._blocks.release(sequence)\n",
    ),
    "a stopped sequence registers what it discarded": (
        "running_set.py",
        "if sequence in findable and sequence not in stopped:",
        "if sequence in findable:",
    ),
    "a decode registers the block that it is about to fill": (
        "running_set.py",
        "known = ahead - self._async",
        "known = ahead + 1",
    ),
    "an ended sequence keeps its blocks": (
        "running_set.py",
        "            self._release(sequence)\n        self.ending.clear()",
        "        self.ending.clear()",
    ),
    "a chunk is computed without blocks": ("step_planner.py", "        if missing > 0:\n", "        if False:\n"),
    "a chunk takes the blocks of a prompt that is planned": (
        "step_planner.py",
        "                del unplanned[sequence]\n",
        "                unplanned = self._running.prefilling.copy()\n",
    ),
    "the sum of squares forgets who left": (
        "decode_set.py",
        "        self.num_squared_context_tokens -= length * length\n",
        "",
    ),
}  # fmt: skip


def fuzz_copy(tmp_path: Path, file: str, old: str, new: str, num_seeds: int) -> subprocess.CompletedProcess[str]:
    """Run the fuzz on a copy of the core in which `old` is replaced by `new`."""
    shutil.copytree(ROOT / "engine", tmp_path / "engine")
    shutil.copytree(ROOT / "tests" / "engine", tmp_path / "tests" / "engine")
    (tmp_path / "tests" / "__init__.py").touch()
    source = (tmp_path / "engine" / file).read_text()
    assert source.count(old) == 1, f"mutant out of date: {old!r} occurs {source.count(old)} times in {file}"
    (tmp_path / "engine" / file).write_text(source.replace(old, new))
    command = [sys.executable, "-m", "tests.engine.fuzz", "--seeds", str(num_seeds)]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("name", MUTANTS)
def test_fuzz_catches_mutant(name: str, tmp_path: Path) -> None:
    result = fuzz_copy(tmp_path, *MUTANTS[name], num_seeds=800)
    assert result.returncode != 0, "the mutant survived"
    assert result.stdout.startswith("seed "), "it failed before it ran a workload: " + result.stderr


def test_fuzz_passes_a_copy_without_mutation(tmp_path: Path) -> None:
    same = "if prompt < 1:"
    result = fuzz_copy(tmp_path, "scheduler.py", same, same, num_seeds=5)
    assert result.returncode == 0 and "5 workloads sound" in result.stdout, result.stderr
