"""The profiler on the real engine of a small model: nothing forgotten, nothing impossible, nothing lost on Ctrl-C."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")


from engine.engine_config import EngineConfig, KVDtype  # noqa: E402
from engine.runner.executors.executor import Rank  # noqa: E402
from kernels.attention.backends import AttentionMetadata  # noqa: E402
from kernels.attention.torch_backend import TorchBackend  # noqa: E402
from kernels.cache.kv_integers import dequantize_blocks  # noqa: E402
from simulator.profile.profile_folder import load_profile  # noqa: E402
from simulator.profiler.bench import Bench  # noqa: E402
from simulator.profiler.operators import Operators  # noqa: E402
from simulator.profiler.profile_machine import PARTIAL, Job, ProfilingError, profile_machine  # noqa: E402
from simulator.profiler.samples import ADDED_BY_ATTENTION, ALL_OPERATORS, ATTENTION, Point  # noqa: E402
from simulator.profiler.stopwatch import Call, MakeCalls  # noqa: E402
from tests.cuda_standin import DispatchMode  # noqa: E402
from tests.simulator.builders import ENGINE, FAMILIES, MODEL_SHAPE, TickingClock, small_model  # noqa: E402

# What surrounds operators: views, and what puts inputs together.
GLUE = {"view", "_unsafe_view", "split", "split_with_sizes", "slice", "select", "unsqueeze", "expand", "t", "transpose"}


class CountOperators(DispatchMode):
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
    model_config, batch, context = small_model(family), 3, 20
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


@pytest.mark.long
def test_an_interrupted_profile_is_finished_by_the_same_job_and_whole(tmp_path: Path) -> None:
    folder = tmp_path / "cpu" / "small" / "tp1"
    asked = replace(job(4.2), engine=replace(ENGINE, max_num_batched_tokens=8))
    told: list[tuple[float, str]] = []

    def interrupt(spent_s: float, doing: str) -> None:
        told.append((spent_s, doing))
        if len(told) == 15:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profile_machine(asked, "test CPU", folder, interrupt, print, TickingClock())
    assert [path.name for path in folder.iterdir()] == [PARTIAL]
    told.clear()
    outcome = profile_machine(
        asked, "test CPU", folder, lambda spent_s, doing: told.append((spent_s, doing)), print, TickingClock()
    )
    profile = load_profile(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["meta.yaml", *(f"{name}.csv" for name in profile.tables)]
    )
    covered = sum(doing == "covering the grid" for _, doing in told)
    assert 0 < covered <= outcome.num_points - 14, "what was measured is not covered again"
    assert told[0][0] > 0 and [spent_s for spent_s, _ in told] == sorted(spent_s for spent_s, _ in told)
    assert outcome.spent_s >= 4.2
    assert set(profile.tables) == {"tokens", "sequences", "attention", "deviations", "copies", "steps"}
    assert profile.meta.device == "test CPU" and profile.meta.calls["qkv_proj"] == 2 and profile.meta.num_layers == 2
    tokens, attention, steps = (profile.tables[name] for name in ("tokens", "attention", "steps"))
    assert {"embedding", "rotary_store", "down_proj", "final_norm"} <= set(tokens["operator"])
    for _, group in tokens.groupby("operator"):
        assert group["num_tokens"].is_monotonic_increasing and group["num_tokens"].iloc[[0, -1]].tolist() == [1, 8]
    assert (tokens["time_us"] > 0).all() and (attention["time_us"] > 0).all()
    assert attention["prefill_context"].max() == 95 and attention["decode_context"].max() == 95
    assert set(steps["kind"]) == {"decode", "prefill", "mixed"}


def test_too_small_a_budget_says_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ProfilingError, match=r"of the coarse grid are not measured yet; about \d+ s are needed"):
        profile_machine(job(0.05), "test CPU", tmp_path / "tp1", lambda spent_s, doing: None, print, TickingClock())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),  # but the free memory, which makes it a block less
        ({"max_num_seqs": 3}, "engine.max_num_seqs=4 instead of 3"),
        ({"num_blocks": 63}, "limits.num_blocks=None instead of 63"),
    ],
)
def test_a_profile_is_resumed_with_another_pool_that_fits_but_not_with_other_settings(
    changes: dict[str, Any], reason: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, told = list[float](), list[str]()

    def interrupt(spent_s: float, doing: str) -> None:
        calls.append(spent_s)
        if len(calls) % 5 == 0:
            raise KeyboardInterrupt

    unsized = replace(ENGINE, num_blocks=None)
    for engine, num_blocks in ((unsized, 64), (replace(unsized, **changes), 63)):
        monkeypatch.setattr(Rank, "fitting_blocks", lambda rank, fitting=num_blocks: fitting)
        with pytest.raises(KeyboardInterrupt):
            profile_machine(
                replace(job(5.0), engine=engine), "test CPU", tmp_path, interrupt, told.append, TickingClock()
            )
    assert (calls[5] > 0) == (reason is None)
    assert len(told) == (reason is not None) and all(str(reason) in line for line in told)


def test_what_attention_adds_to_other_operators_is_measured_apart_from_its_own_time() -> None:
    class SlowBesideAttention:
        """Every call takes 10 us, and 3 more where attention runs in between."""

        def time(self, make_calls: MakeCalls, at_least_s: float) -> dict[str, list[float]]:
            names = {call.operator for call in make_calls()}
            return {name: [10.0 + 3.0 * (len(names - {ATTENTION}) < len(names))] * 2 for name in names}

    bench = bench_of(ENGINE)
    bench._stopwatch = SlowBesideAttention()
    added = 3.0 * sum(bench.calls.values())
    assert bench.measure(Point("beside", (2, 40)))[ADDED_BY_ATTENTION] == [added, added]
    assert bench.measure(Point("decode", (2, 40))) == {ATTENTION: [13.0, 13.0]}
    whole = bench.measure(Point("step_decode", (2, 24)))[ALL_OPERATORS]
    assert whole == [13.0 * (sum(bench.calls.values()) + 2)] * 2
    bench.limits = replace(bench.limits, tensor_parallel_size=2)  # steps wait for other ranks, and operators do not
    assert ALL_OPERATORS not in bench.measure(Point("step_decode", (2, 24)))


@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize(("graphs", "launched"), [(False, (3, 24, (3, 2))), (True, (4, 96, (4, 6)))])
@pytest.mark.sample(2)
def test_decode_attention_is_profiled_as_the_engine_launches_it(
    graphs: bool, launched: tuple[object, ...], on_cpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, bound of the contexts and shape of the block table: under CUDA graphs those of the bucket and the model."""
    seen, forward = set[tuple[object, ...]](), TorchBackend.forward

    def see(*args: Any, **kwargs: Any) -> Any:
        _, q, _, step, *_ = args
        assert (step.decode_context_lens > 0).sum() == 3
        seen.add((len(q), step.max_decode_context, tuple(step.decode_block_tables.shape)))
        return forward(*args, **kwargs)

    bench = bench_of(replace(ENGINE, cuda_graphs=graphs))
    bench.limits = replace(bench.limits, on_cpu=on_cpu)
    monkeypatch.setattr(TorchBackend, "forward", see)
    bench.measure(Point("decode", (3, 24)))
    assert seen == {launched}
    seen.clear()
    bench.measure(Point("uneven", (3, 32, 25)))
    bench.measure(Point("step_decode", (3, 24)))
    assert not graphs or seen == {launched}


def test_each_layer_has_its_own_attention_among_the_operators() -> None:
    rank = Rank(ENGINE, small_model(), None)
    operators = Operators(rank.model, rank.allocate(64).kv_cache, 16, 4, temperature=0.0, seed=0)
    layers = [Call(f"attention {i}", lambda: None) for i in range(2)]
    names = [call.operator for call in operators.tokens(3, 3, lambda: layers)()]
    without = [call.operator for call in operators.tokens(3, 3)()]
    assert [name for name in names if name not in {"attention 0", "attention 1"}] == without
    ends = [i for i, name in enumerate(names) if name == "down_proj"]
    assert [names[i + 1] for i in ends] == ["attention 0", "attention 1"]


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_a_cache_of_integers_is_filled_with_normal_numbers(dtype: KVDtype) -> None:
    rank = Rank(replace(ENGINE, kv_cache_dtype=dtype), small_model(), None)
    cache = rank.allocate(64).kv_cache
    Operators(rank.model, cache, 16, 4, temperature=0.0, seed=0)
    numbers = dequantize_blocks(cache.flatten(0, 2), torch.float32)
    assert float(numbers.std()) == pytest.approx(1, abs=0.05) and bool(numbers.any(-1).all())


def test_a_profile_knows_to_which_sizes_steps_with_prompts_are_padded() -> None:
    captured = replace(ENGINE, cuda_graphs=True, max_num_batched_tokens=96)
    assert bench_of(captured).limits.prompt_buckets == (16, 32, 64, 96)
    for plain in (replace(captured, max_graph_tokens=0), replace(captured, cuda_graphs=False)):
        assert bench_of(plain).limits.prompt_buckets == ()


def bench_of(engine: EngineConfig) -> Bench:
    return Bench(engine, small_model(), None, 0.0, None, lambda report: None, TickingClock())


def job(time_budget_s: float) -> Job:
    return Job(ENGINE, small_model(), MODEL_SHAPE, num_threads=1, time_budget_s=time_budget_s)
