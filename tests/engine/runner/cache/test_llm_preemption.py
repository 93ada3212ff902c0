"""Whatever preemption keeps, the real engine generates the same; and copies may end as late as they like."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from engine.api.calls import RequestAbortedError  # noqa: E402
from engine.api.llm import LLM  # noqa: E402
from engine.core.plan import StepPlan  # noqa: E402
from engine.core.sequence import Sequence, SequenceStatus  # noqa: E402
from engine.runner import model_runner  # noqa: E402
from engine.runner.cache.kv_cache import OutOfMemoryError  # noqa: E402
from engine.runner.model_runner import ModelRunner  # noqa: E402
from engine.sampling_params import SamplingParams  # noqa: E402
from tests.engine.builders import GREEDY, KINDS, MODEL, SETTINGS, STARVED, Late, make_prompts, watch_plans  # noqa: E402
from tests.selection import few  # noqa: E402

BRIEF = replace(GREEDY, max_tokens=18)
# Sequences of a request that draw tokens of their own, of which some stop early.
SAMPLED = SamplingParams(n=3, max_tokens=18, temperature=0.8, seed=7, stop_token_ids=tuple(range(0, 300, 20)))


@pytest.fixture(scope="module")
def expected() -> dict[str, list[list[list[int]]]]:
    """Tokens by request and sequence, from a pool with room for all."""
    llm = LLM(MODEL, **SETTINGS)
    return {"greedy": serve(llm, BRIEF), "sampled": serve(llm, SAMPLED)}


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What preempted sequences kept, by kind."""
    counts: Counter[str] = Counter()
    swaps: Counter[Sequence] = Counter()
    parts: Counter[Sequence] = Counter()

    def count(plan: StepPlan) -> None:
        for each in plan.preempted:
            is_swapped, is_part = each.num_swaps > swaps[each], each.num_partial_preemptions > parts[each]
            counts["host_copy" if is_swapped else "prefix" if is_part else "nothing"] += 1
            swaps[each], parts[each] = each.num_swaps, each.num_partial_preemptions

    watch_plans(monkeypatch, count)
    return counts


def serve(llm: LLM, params: SamplingParams) -> list[list[list[int]]]:
    outputs = llm.generate(make_prompts()[:8], params)
    assert llm.engine.scheduler.blocks.num_used_blocks() == 0
    llm.engine.scheduler.check_integrity()
    return [[each.token_ids for each in output.outputs] for output in outputs]


def engine(kind: str, **settings: Any) -> LLM:
    return LLM(MODEL, **{**STARVED, **KINDS[kind], **settings})


@pytest.mark.parametrize("kind", few(["partial", "swap", "auto"], 2))
def test_tokens_are_those_of_an_ample_pool(kind: str, expected: Any, kept: Counter[str]) -> None:
    llm = engine(kind, enable_prefix_caching=kind != "partial")
    assert serve(llm, BRIEF) == expected["greedy"]
    assert serve(llm, SAMPLED) == expected["sampled"]
    kinds = {"partial": {"prefix"}, "swap": {"host_copy"}, "auto": {"nothing", "host_copy"}}
    assert kept.keys() == kinds[kind] and min(kept.values()) > 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize(
    "settings",
    [
        {"policy": "prefill_first"},
        {"policy": "static"},
        {"policy": "admission_order", "allocation": "chunk", "eviction": "lru", "full_hit": "recompute_block"},
        {"cuda_graphs": True, "max_lookahead_steps": 3},
        {"tensor_parallel_size": 2},
    ],
    ids=lambda settings: next(iter(settings.values())),
)
def test_tokens_are_those_of_an_ample_pool_with_all_settings(
    kind: str, caching: bool, settings: dict[str, Any], expected: Any
) -> None:
    llm = engine(kind, enable_prefix_caching=caching, **settings)
    assert serve(llm, BRIEF) == expected["greedy"]
    assert serve(llm, SAMPLED) == expected["sampled"]
    llm.close()


@pytest.fixture
def late(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Late:
    """The side stream of the engine that a test makes; its patience, if not without end, is the fixture's parameter."""
    stream = Late(getattr(request, "param", 10**9))
    monkeypatch.setattr(model_runner, "side_stream", lambda device: stream)
    return stream


@pytest.mark.parametrize(
    ("late", "settings"),
    [
        pytest.param(3, {"enable_prefix_caching": False}, marks=pytest.mark.slow),
        pytest.param(10**9, {"enable_prefix_caching": False}, marks=pytest.mark.long),
        (3, {"offload": True}),
        pytest.param(10**9, {"offload": True}, marks=pytest.mark.slow),
    ],
    ids=["swaps asked for", "swaps waited for", "hits asked for", "hits waited for"],
    indirect=["late"],
)
def test_no_token_depends_on_when_copies_end(
    settings: dict[str, Any], late: Late, expected: Any, kept: Counter[str]
) -> None:
    """Also where nothing else can be done before they have."""
    llm = engine("swap", cuda_graphs=True, **settings)
    assert serve(llm, BRIEF) == expected["greedy"] and kept["host_copy"]
    assert serve(llm, SAMPLED) == expected["sampled"]
    assert len(late.copies) > 5 and max(late.asked.values()) >= 2


@pytest.mark.parametrize("status", ["WAITING", "PARKED"])
def test_an_aborted_one_leaves_its_blocks_to_others(status: str, late: Late, expected: Any) -> None:
    """While its KV is on the host, or on its way back into blocks that others get."""
    llm = engine("swap", enable_prefix_caching=False)
    prompts = make_prompts()[:8]
    streams = [llm.stream([prompt], BRIEF) for prompt in prompts]
    found = None
    while found is None:
        next(stream for stream in streams if stream.num_unfinished).run_step()
        for request in llm.engine.scheduler.unfinished:
            (sequence,) = request.sequences
            if sequence.host_blocks and sequence.status is SequenceStatus[status]:
                found = prompts.index((sequence.token_ids or [])[: request.num_prompt_tokens])
    streams[found].close()
    llm.engine.scheduler.check_integrity()
    for i, stream in enumerate(streams):
        if i != found:
            list(stream)
            assert stream.finish()[0]["token_ids"] == expected["greedy"][i][0]
    host = llm.engine.scheduler.blocks.host
    assert host is not None and host.num_free_blocks == host.num_blocks


def test_after_an_error_the_engine_serves_on(late: Late, expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of before may still be on their way into blocks that are given out anew."""
    llm = engine("swap", enable_prefix_caching=False)
    stream = llm.stream(make_prompts()[:8], BRIEF)
    while not any(s.status is SequenceStatus.PARKED for r in llm.engine.scheduler.unfinished for s in r.sequences):
        next(stream)

    def fail(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(ModelRunner, "execute", fail)
        with pytest.raises(MemoryError):
            llm.generate([[1, 2, 3]], BRIEF)
    with pytest.raises(RequestAbortedError):
        list(stream)
    assert serve(llm, BRIEF) == expected["greedy"]


def test_host_memory_has_room_for_a_block_and_is_there() -> None:
    with pytest.raises(OutOfMemoryError, match=r"^1e-06 GiB of host memory for KV blocks: one takes 1\.91e-06 GiB$"):
        engine("swap", host_kv_gib=1e-6)
    with pytest.raises(OutOfMemoryError, match=r"^1e\+06 GiB of host memory for KV blocks: .* GiB are free$"):
        engine("swap", host_kv_gib=1e6)
