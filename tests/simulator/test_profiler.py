"""The profiler on the real engine of a small model: nothing forgotten, nothing impossible, nothing lost on Ctrl-C."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from engine.block_manager import Eviction  # noqa: E402
from engine.engine_config import EngineConfig  # noqa: E402
from engine.executor import Rank  # noqa: E402
from engine.model_config import ModelConfig  # noqa: E402
from engine.model_runner import StepTokens  # noqa: E402
from engine.step_inputs import StepInputs  # noqa: E402
from kernels.attention import AttentionMetadata  # noqa: E402
from simulator.hardware import ModelShape  # noqa: E402
from simulator.profile import ProfileMeta, load_profile  # noqa: E402
from simulator.profiler import families  # noqa: E402
from simulator.profiler.bench import Bench, Limits, uneven_contexts  # noqa: E402
from simulator.profiler.collectives import Collectives  # noqa: E402
from simulator.profiler.operators import Operators, placed_blocks  # noqa: E402
from simulator.profiler.run import PARTIAL, Job, ProfilingError, profile_machine  # noqa: E402
from simulator.profiler.samples import (  # noqa: E402
    ADDED_BY_ATTENTION,
    ALL_OPERATORS,
    ATTENTION,
    Point,
    Samples,
)
from simulator.profiler.steps import Steps  # noqa: E402
from simulator.profiler.stopwatch import Call, MakeCalls  # noqa: E402
from simulator.profiler.tables import increasing, make_profile  # noqa: E402

SHAPE: dict[str, Any] = {
    "name": "small", "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_kv_heads": 2, "head_dim": 16,
    "intermediate_size": 128, "vocab_size": 300, "tie_word_embeddings": False, "max_position_embeddings": 256,
    "dtype": "float32", "num_experts": 0, "num_experts_per_token": 0, "moe_intermediate_size": 0,
}  # fmt: skip
EXPERTS = {"num_experts": 2, "num_experts_per_token": 2, "moe_intermediate_size": 32}  # all run, whatever the input
FAMILIES = {
    "qwen3": ModelConfig.from_shape(SHAPE),
    "qwen3_moe": ModelConfig.from_shape(SHAPE | EXPERTS),
    "llama": ModelConfig.from_shape(SHAPE | {"name": "Llama"}),
}
MODEL_SHAPE = ModelShape(**SHAPE | {"dtype": "fp32", "dtype_bytes": 4})
ENGINE = EngineConfig(
    num_blocks=64, block_size=16, max_num_seqs=4, max_num_batched_tokens=16, max_model_len=96, load_format="random"
)
# What surrounds operators: views, and what puts inputs together.
GLUE = {"view", "_unsafe_view", "split", "split_with_sizes", "slice", "select", "unsqueeze", "expand", "t", "transpose"}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


class CountOperators(TorchDispatchMode):
    """Counts torch's own operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in GLUE:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_the_operators_are_all_that_a_forward_pass_runs(family: str) -> None:
    """A decode step of the model runs the same operators of torch, as often, as the profiler's calls for it."""
    model_config, batch, context = FAMILIES[family], 3, 20
    rank = Rank(ENGINE, model_config, None)
    cache = rank.allocate(64).kv_cache
    operators = Operators(rank.model, cache, 64, 8, temperature=0.0, seed=0)
    tables = torch.arange(batch * 2, dtype=torch.int32).view(batch, 2)
    empty = torch.zeros(0, dtype=torch.int32)
    metadata = AttentionMetadata(
        slot_mapping=tables[:, 1].long() * 16 + context % 16,
        num_prefill_tokens=0,
        cu_seqlens_q=torch.zeros(1, dtype=torch.int32),
        prefill_context_lens=empty,
        prefill_block_tables=empty.reshape(0, 0),
        max_seqlen_q=0,
        max_prefill_context=0,
        decode_context_lens=torch.full((batch,), context, dtype=torch.int32),
        decode_block_tables=tables,
        max_decode_context=context,
    )
    ids, positions = torch.arange(batch), torch.full((batch,), context - 1)
    with CountOperators() as model:
        rank.model.compute_logits(rank.model(ids, positions, cache, metadata))
    calls = [*operators.tokens(batch, batch)(), *operators.decode([context] * batch)()]
    with CountOperators() as profiled:
        for operator, run in calls:
            if operator != "sampler":
                run()
    differing = {name for name in {*model.counts, *profiled.counts} if model.counts[name] != profiled.counts[name]}
    assert differing <= {"empty", "unbind"}, {  # scratch memory, and the cache's layers taken apart
        name: (model.counts[name], profiled.counts[name]) for name in differing
    }
    assert model.counts["index_copy_"] >= 2 * model_config.num_layers  # KV stores, so the counting works


def test_an_interrupted_profile_is_finished_by_the_same_job_and_whole(tmp_path: Path) -> None:
    folder = tmp_path / "cpu" / "small" / "tp1"
    told: list[tuple[float, str]] = []

    def interrupt(spent_s: float, doing: str) -> None:
        told.append((spent_s, doing))
        if len(told) == 15:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profile_machine(job(10.0), "test CPU", folder, interrupt)
    assert [path.name for path in folder.iterdir()] == [PARTIAL]
    told.clear()
    outcome = profile_machine(job(10.0), "test CPU", folder, lambda spent_s, doing: told.append((spent_s, doing)))
    profile = load_profile(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["meta.yaml", *(f"{name}.csv" for name in profile.tables)]
    )
    covered = sum(doing == "covering the grid" for _, doing in told)
    assert 0 < covered <= outcome.num_points - 14, "what was measured is not covered again"
    assert told[0][0] > 0 and [spent_s for spent_s, _ in told] == sorted(spent_s for spent_s, _ in told)
    assert outcome.spent_s >= 10.0
    assert set(profile.tables) == {"tokens", "sequences", "attention", "deviations", "copies", "steps"}
    assert profile.meta.device == "test CPU" and profile.meta.calls["qkv_proj"] == 2 and profile.meta.num_layers == 2
    tokens, attention, steps = (profile.tables[name] for name in ("tokens", "attention", "steps"))
    assert {"embedding", "qk_norm", "kv_store", "down_proj", "final_norm"} <= set(tokens["operator"])
    for _, group in tokens.groupby("operator"):
        assert group["num_tokens"].is_monotonic_increasing and group["num_tokens"].iloc[[0, -1]].tolist() == [1, 16]
    assert (tokens["time_us"] > 0).all() and (attention["time_us"] > 0).all()
    assert attention["prefill_context"].max() == 95 and attention["decode_context"].max() == 95
    assert set(steps["kind"]) == {"decode", "prefill", "mixed"}


def test_too_small_a_budget_says_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ProfilingError, match=r"of the coarse grid are not measured yet; about \d+ s are needed"):
        profile_machine(job(0.05), "test CPU", tmp_path / "tp1", lambda spent_s, doing: None)


@pytest.mark.parametrize(("batch", "percent"), [(2, 50), (2, 100), (8, 150), (256, 25), (256, 150)])
def test_uneven_contexts_have_their_mean_and_deviation(batch: int, percent: int) -> None:
    contexts = np.array(uneven_contexts(batch, 400, percent, 4096))
    assert contexts.mean() == pytest.approx(400, rel=0.04)
    assert contexts.std() == pytest.approx(4.0 * percent, rel=0.1)
    assert contexts.min() >= 1 and contexts.max() <= 4096


def test_contexts_that_cannot_be_so_uneven_are_told() -> None:
    assert uneven_contexts(2, 400, 150, 4096) is None
    assert uneven_contexts(64, 400, 100, 500) is None


def test_the_rest_of_steps_is_what_was_put_in() -> None:
    """Samples of a machine whose times are known: steps of 36, 50 or 90 us beyond their operators, 2 layers."""
    samples = Samples({})
    for size in (1, 8, 64):
        times = {"qkv_proj": [10.0 + size], "o_proj": [5.0], "down_proj": [7.0]}
        heads = {"lm_head": [20.0 + size], "sampler": [3.0]} if size <= 8 else {}
        samples.add(Point("tokens", (size,)), times | heads, 1.0)
    for batch in (1, 8):
        for context in (16, 1024):
            samples.add(Point("decode", (batch, context)), {"attention": [1.0 + batch * context / 16]}, 1.0)
    samples.add(Point("uneven", (8, 256, 50)), {"attention": [150.0]}, 1.0)
    for chunk in (1, 64):
        for start in (0, 128):
            samples.add(Point("prefill", (chunk, start)), {"attention": [2.0 + chunk + start / 8]}, 1.0)
    operators = 2 * (10 + 8 + 5 + 7 + 1 + 8 * 261 / 16) + 28 + 3
    samples.add(Point("step_decode", (8, 256)), {"8": [operators + 50] * 3}, 1.0)
    layers = 2 * (10 + 64 + 5 + 7 + 2 + 64)
    samples.add(Point("step_prefill", (64,)), {"64": [layers + 21 + 3 + 90] * 3}, 1.0)
    layers = 2 * (10 + 8 + 5 + 7 + 2 + 8)
    samples.add(Point("step_prefill", (8,)), {"8": [layers + 21 + 3 + 36] * 3}, 1.0)
    calls = {"qkv_proj": 2, "o_proj": 2, "down_proj": 2, "lm_head": 1, "sampler": 1}
    meta = ProfileMeta("made up", "small", 1, 2, calls, dtype="float32", batched_prefill=False)
    profile = make_profile(samples, meta, MODEL_SHAPE, lambda num_tokens: [num_tokens])
    (uneven,) = profile.tables["deviations"].to_dict("records")
    assert uneven == {
        "num_decodes": 8, "decode_context": 256, "deviation_pct": 50, "time_us": 150.0, "spread_us": 0.0
    }  # fmt: skip
    steps = profile.tables["steps"].set_index(["kind", "num_tokens"])["time_us"]
    assert steps["decode", 8] == pytest.approx(50, abs=0.01)
    assert steps["prefill", 8] == pytest.approx(36, abs=0.01) and steps["prefill", 64] == pytest.approx(90, abs=0.01)
    samples.add(Point("step_decode", (8, 256)), {ALL_OPERATORS: [operators + 20] * 3}, 1.0)
    timed_beside = make_profile(samples, meta, MODEL_SHAPE, lambda num_tokens: [num_tokens]).tables["steps"]
    assert timed_beside.set_index("kind").loc["decode", "time_us"] == pytest.approx(30, abs=0.01)


@pytest.mark.parametrize(
    ("context", "block_size"), [(1, 16), (2, 1), (99, 2), (99, 3), (20, 16), (97, 16), (4096, 256)]
)
def test_contexts_end_inside_a_block_and_at_the_longest_that_is_decoded(context: int, block_size: int) -> None:
    limits = Limits(64, 8, context, context, 1 << 20, block_size, (), 1, 128)
    contexts = next(grid.axes[1] for grid in families.grids(limits) if grid.family == "decode")
    assert contexts == sorted(set(contexts)) and contexts[0] >= 1 and contexts[-1] == max(1, context - 1)
    assert block_size == 1 or all(each % block_size for each in contexts[:-1])


def test_blocks_lie_as_in_a_pool_in_use() -> None:
    """Prompts in one piece each, and what is generated in turns: of three sequences, and of five that have ended."""
    assert placed_blocks([5, 1, 9], 128, 1000).tolist() == [
        [0, 1, 2, 9, 16, 0, 0, 0, 0],
        [3, 0, 0, 0, 0, 0, 0, 0, 0],
        [4, 5, 6, 7, 8, 10, 17, 23, 29],
    ]
    assert placed_blocks([9, 4], 256, 13).tolist() == [[0, 1, 2, 3, 4, 5, 6, 9, 11], [7, 8, 10, 12, 0, 0, 0, 0, 0]]


@pytest.mark.parametrize("block_size", [1, 16, 300])
@pytest.mark.parametrize("counts", [[1], [40], [3, 1, 700], [20] * 12])
@pytest.mark.parametrize("spare", [0, 1, 50, 10**4])
def test_blocks_are_of_the_pool_and_nobody_elses(counts: list[int], spare: int, block_size: int) -> None:
    num_blocks = sum(counts) + spare
    tables = placed_blocks(counts, block_size, num_blocks)
    held = [block for row, count in zip(tables.tolist(), counts, strict=True) for block in row[:count]]
    assert len(set(held)) == len(held) and min(held) >= 0 and max(held) < num_blocks


@pytest.mark.parametrize("eviction", ["unhashed_first", "lru"])
def test_whole_steps_are_timed_on_blocks_that_lie_like_those_of_the_operators(eviction: Eviction) -> None:
    batch, context, tables = 3, 85, []
    config = replace(ENGINE, eviction=eviction, max_lookahead_steps=1)
    rank = Rank(config, FAMILIES["qwen3"], None)
    runner = rank.allocate(64)

    class SeeTables:
        num_blocks, backend_name = 64, "torch"

        def execute(self, inputs: StepInputs) -> StepTokens:
            tables.extend(inputs.rows.joined_tables.tolist())
            return runner.execute(inputs)

        def close(self) -> None: ...

    Steps(config, SeeTables(), 96, 300, 0.0, lambda report: None).decode(batch, context)
    assert tables == placed_blocks([6] * batch, 16, 64).tolist()


def test_prompts_beside_timed_decodes_lie_in_one_piece() -> None:
    config = replace(
        ENGINE, num_blocks=256, block_size=4, max_num_batched_tokens=128, max_model_len=160, max_lookahead_steps=1
    )
    rank = Rank(config, FAMILIES["qwen3"], None)
    runner = rank.allocate(256)
    tables: list[list[int]] = []

    class SeePrompts:
        num_blocks, backend_name = 256, "torch"

        def execute(self, inputs: StepInputs) -> StepTokens:
            tables.extend([] if inputs.prefill is None else inputs.prefill.block_tables.tolist())
            return runner.execute(inputs)

        def close(self) -> None: ...

    Steps(config, SeePrompts(), 160, 300, 0.0, lambda report: None).with_prompts(1, 100, 90)
    assert np.diff(tables[0]).tolist() == [1] * (len(tables[0]) - 1)


def test_what_attention_adds_to_other_operators_is_measured_apart_from_its_own_time() -> None:
    class SlowBesideAttention:
        """Every call takes 10 us, and 3 more where attention runs in between."""

        def time(self, make_calls: MakeCalls, at_least_s: float) -> dict[str, list[float]]:
            names = {call.operator for call in make_calls()}
            return {name: [10.0 + 3.0 * (len(names - {ATTENTION}) < len(names))] * 2 for name in names}

    bench = Bench(ENGINE, FAMILIES["qwen3"], None, 0.0, None, lambda report: None)
    bench._stopwatch = SlowBesideAttention()
    added = 3.0 * sum(bench.calls.values())
    assert bench.measure(Point("beside", (2, 40))) == {ADDED_BY_ATTENTION: [added, added]}
    assert bench.measure(Point("decode", (2, 40))) == {ATTENTION: [13.0, 13.0]}
    whole = bench.measure(Point("step_decode", (2, 24)))[ALL_OPERATORS]
    assert whole == [13.0 * (sum(bench.calls.values()) + 2)] * 2
    bench.limits = replace(bench.limits, tensor_parallel_size=2)  # steps wait for other ranks, and operators do not
    assert ALL_OPERATORS not in bench.measure(Point("step_decode", (2, 24)))


def test_each_layer_has_its_own_attention_among_the_operators() -> None:
    rank = Rank(ENGINE, FAMILIES["qwen3"], None)
    operators = Operators(rank.model, rank.allocate(64).kv_cache, 16, 4, temperature=0.0, seed=0)
    layers = [Call(f"attention {i}", lambda: None) for i in range(2)]
    names = [call.operator for call in operators.tokens(3, 3, lambda: layers)()]
    without = [call.operator for call in operators.tokens(3, 3)()]
    assert [name for name in names if name not in {"attention 0", "attention 1"}] == without
    ends = [i for i, name in enumerate(names) if name == "down_proj"]
    assert [names[i + 1] for i in ends] == ["attention 0", "attention 1"]


@pytest.mark.parametrize("on_cpu", [True, False])
def test_what_attention_adds_is_looked_for_on_a_cpu(on_cpu: bool) -> None:
    limits = Limits(64, 8, 4096, 4096, 1 << 20, 16, (), 1, 128, on_cpu)
    points = [point for grid in families.others(limits) if grid.family == "beside" for point in grid.points()]
    tokens = [point.sizes[0] * point.sizes[1] for point in points]
    assert not on_cpu or (min(tokens) < 100 and max(tokens) > 32_000)
    assert bool(points) == on_cpu


def test_decodes_carry_what_they_add_to_other_operators() -> None:
    """Two layers; the samples of 512 tokens say less than those of 64, which cannot be but noise."""
    samples = Samples({})
    calls = {"qkv_proj": 2, "o_proj": 2, "down_proj": 2, "lm_head": 1, "sampler": 1}
    samples.add(Point("tokens", (1,)), {operator: [10.0] for operator in calls}, 1.0)
    for batch, context in ((1, 64), (8, 64), (8, 1024)):
        samples.add(Point("decode", (batch, context)), {ATTENTION: [5.0]}, 1.0)
        samples.add(Point("uneven", (batch, context, 50)), {ATTENTION: [7.0]}, 1.0)
    samples.add(Point("prefill", (1, 0)), {ATTENTION: [2.0]}, 1.0)
    for sizes, added in (((1, 32), -4.0), ((1, 64), 30.0), ((8, 64), 10.0), ((8, 1024), 100.0)):
        samples.add(Point("beside", sizes), {ADDED_BY_ATTENTION: [added] * 3}, 1.0)
    meta = ProfileMeta("made up", "small", 1, 2, calls, dtype="float32", batched_prefill=False)
    tables = make_profile(samples, meta, MODEL_SHAPE, lambda num_tokens: [num_tokens]).tables
    assert tables["attention"]["time_us"].tolist() == [5 + 20 / 2, 5 + 20 / 2, 5 + 100 / 2, 2.0]
    assert tables["deviations"]["time_us"].tolist() == [7 + 20 / 2, 7 + 20 / 2, 7 + 100 / 2]


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=12))
def test_increasing_values_are_the_nearest(values: list[int]) -> None:
    """By the known formula: the largest over starts up to a place of the smallest mean from there to ends after it."""
    count = len(values)
    expected = [
        max(min(np.mean(values[start : end + 1]) for end in range(i, count)) for start in range(i + 1))
        for i in range(count)
    ]
    assert increasing(values) == pytest.approx(expected)


def test_all_reduce_is_timed_on_real_ranks() -> None:
    collectives = Collectives("cpu", 2)
    try:
        times = collectives.all_reduce(1 << 12)
    finally:
        collectives.close()
    assert len(times) > 1 and min(times) > 0


def job(time_budget_s: float) -> Job:
    return Job(ENGINE, FAMILIES["qwen3"], MODEL_SHAPE, num_threads=1, time_budget_s=time_budget_s)
