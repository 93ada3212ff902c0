"""Several calls share one engine: each gets its own outputs, and a step that fails ends what ran, not the engine."""

from __future__ import annotations

import gc
import random
import re
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from engine.api.calls import EngineClosedError, RequestAbortedError  # noqa: E402
from engine.api.llm import LLM  # noqa: E402
from engine.api.llm_engine import LLMEngine  # noqa: E402
from engine.api.outputs import RequestOutput  # noqa: E402
from engine.api.token_collector import TokenCollector  # noqa: E402
from engine.core.kv.block_manager import BlockManager  # noqa: E402
from engine.core.scheduler import Scheduler  # noqa: E402
from engine.runner.executors.tensor_parallel import WorkerError  # noqa: E402
from engine.runner.inputs.step_inputs import StepBuilder  # noqa: E402
from engine.runner.model_runner import ModelRunner  # noqa: E402
from tests.engine.builders import GREEDY, MODEL, SETTINGS, fail_once, interrupted, make_prompts, one_by_one  # noqa: E402

NUM_TOKENS = 16
BRIEF = replace(GREEDY, max_tokens=NUM_TOKENS)


@pytest.fixture(scope="module")
def llm() -> LLM:
    """One engine for all tests: whatever a test does to it, it must serve on."""
    torch.set_num_threads(1)
    return LLM(MODEL, **SETTINGS)


def expected() -> list[list[int]]:
    return [tokens[:NUM_TOKENS] for tokens in one_by_one()]


def tokens_of(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output["token_ids"] for output in outputs]


def assert_serves(llm: LLM) -> None:
    """The engine holds nothing, and generates what a fresh one does, then again from its prefix cache."""
    scheduler = llm.engine.scheduler
    assert not scheduler.unfinished and scheduler.blocks.num_used_blocks() == 0
    scheduler.check_integrity()
    for _ in range(2):
        assert tokens_of(llm.generate(make_prompts()[:3], BRIEF)) == expected()[:3]


def test_streams_and_generate_run_side_by_side_each_with_its_own_outputs(llm: LLM) -> None:
    prompts = make_prompts()
    streams = [llm.stream(prompts[i : i + 3], BRIEF) for i in range(0, 9, 3)]
    last: list[dict[int, list[int]]] = [{}, {}, {}]
    rng, open_ones = random.Random(0), [0, 1, 2]
    while open_ones:
        number = rng.choice(open_ones)
        output = next(streams[number], None)
        if output is None:
            open_ones.remove(number)
            continue
        before = last[number].get(output.index, [])
        assert len(output["token_ids"]) > len(before) and output["token_ids"][: len(before)] == before
        last[number][output.index] = output["token_ids"]
        if rng.random() < 0.03:
            assert tokens_of(llm.generate(prompts[9:11], BRIEF)) == expected()[9:11]
    found = [each[i] for each in last for i in range(3)]
    assert found == expected()[:9]
    assert_serves(llm)


@pytest.mark.parametrize("how", ["close", "abandon", "in a cycle", "never started"])
@pytest.mark.sample(2)
def test_a_stream_that_is_given_up_takes_only_its_own_requests_along(llm: LLM, how: str) -> None:
    prompts = make_prompts()
    kept, given_up = llm.stream(prompts[:2], BRIEF), llm.stream(prompts[2:6], BRIEF)
    for _ in range(3):
        next(kept)
        if how != "never started":
            next(given_up)
    if how == "close":
        given_up.close()
        assert list(given_up) == []
    cycle: list[Any] = [given_up]
    cycle.append(cycle)
    del given_up
    if how == "in a cycle":
        del cycle
        gc.collect()
    else:
        cycle.clear()
    assert len(llm.engine.scheduler.unfinished) == 2
    final = {output.index: output["token_ids"] for output in kept}
    assert [final[0], final[1]] == expected()[:2]
    assert_serves(llm)


def test_a_stream_collected_in_the_middle_of_a_step_is_aborted_after_it(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = make_prompts()
    streams = [llm.stream(prompts[2:6], BRIEF)]
    execute = ModelRunner.execute

    def execute_and_collect(*args: Any) -> Any:
        streams.clear()
        return execute(*args)

    monkeypatch.setattr(ModelRunner, "execute", execute_and_collect)
    assert tokens_of(llm.generate(prompts[:2], BRIEF)) == expected()[:2]
    assert_serves(llm)


@pytest.mark.parametrize(
    ("error", "after"),
    [(KeyboardInterrupt(), False), pytest.param(MemoryError(), True, marks=pytest.mark.slow)],
    ids=repr,
)
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (ModelRunner, "execute"),
        (Scheduler, "schedule"),
        (Scheduler, "extend"),
        (Scheduler, "commit"),
        (Scheduler, "add"),
        (Scheduler, "abort"),
        pytest.param(BlockManager, "register", marks=pytest.mark.interpreted("an error in the midst of it")),
        (StepBuilder, "build"),
        (TokenCollector, "collect"),
    ],
)
@pytest.mark.sample(5)
def test_after_any_error_the_engine_serves_on(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, error: BaseException, after: bool
) -> None:
    prompts = make_prompts()
    other = llm.stream(prompts[2:4], BRIEF)
    next(other)
    with monkeypatch.context() as patched:
        fail_once(patched, llm, owner, name, error, after=after)
        with pytest.raises(type(error)):
            llm.stream(prompts[:2], BRIEF).close() if name == "abort" else llm.generate(prompts[:2], BRIEF)
    with pytest.raises(RequestAbortedError, match=rf"a step of the engine failed \({type(error).__name__}") as caught:
        list(other)
    assert "\n" not in str(caught.value)
    assert_serves(llm)


def test_requests_that_had_finished_are_still_delivered_after_a_failure(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = make_prompts()
    stream = llm.stream(prompts[:2], [replace(BRIEF, max_tokens=3), BRIEF])
    llm.generate(prompts[5:6], replace(BRIEF, max_tokens=10))
    fail_once(monkeypatch, llm, ModelRunner, "execute", MemoryError(), after=False)
    with pytest.raises(MemoryError):
        llm.generate(prompts[2:3], BRIEF)
    output = next(stream)
    assert output.index == 0 and output.finished and output["token_ids"] == expected()[0][:3]
    with pytest.raises(RequestAbortedError):
        next(stream)
    assert_serves(llm)


def test_a_stream_whose_abort_fails_ends_and_disturbs_nobody_later(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = make_prompts()
    stream = llm.stream(prompts[:1], BRIEF)
    next(stream)
    with monkeypatch.context() as patched:
        fail_once(patched, llm, Scheduler, "abort", KeyboardInterrupt(), after=False)
        with pytest.raises(KeyboardInterrupt):
            stream.close()
    kept = llm.stream(prompts[2:3], BRIEF)
    stream.close()
    with pytest.raises(RequestAbortedError):
        next(stream)
    assert [output["token_ids"] for output in kept][-1] == expected()[2]
    assert_serves(llm)


@pytest.mark.parametrize("num_times", [25, pytest.param(1000, marks=pytest.mark.slow)])
def test_ctrl_c_at_any_line_leaves_an_engine_that_serves(llm: LLM, num_times: int) -> None:
    rng = random.Random(0)
    num_interrupted = 0
    for _ in range(num_times):
        num_interrupted += interrupted(llm, rng.randint(1, 9000) if rng.random() < 0.7 else rng.randint(1, 900))
        assert tokens_of(llm.generate(make_prompts()[:3], replace(BRIEF, max_tokens=6))) == [
            tokens[:6] for tokens in expected()[:3]
        ]
        gc.collect()
        assert not llm.engine.scheduler.unfinished
    assert num_interrupted > 0.4 * num_times
    assert_serves(llm)


def test_an_interrupted_recovery_is_made_up_for(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = make_prompts()
    other = llm.stream(prompts[2:4], BRIEF)
    next(other)
    with monkeypatch.context() as patched:
        fail_once(patched, llm, ModelRunner, "execute", KeyboardInterrupt(), after=False)
        fail_once(patched, llm, LLMEngine, "reset", KeyboardInterrupt(), after=False)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(prompts[:2], BRIEF)
    with pytest.raises(RequestAbortedError):
        list(other)
    assert_serves(llm)


def test_a_dead_worker_and_a_closed_engine_are_one_clear_error_in_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    for reason in ("rank 1 failed", "its model was freed by close()"):
        llm, prompts = LLM(MODEL, **SETTINGS), make_prompts()
        stream, untouched = llm.stream(prompts[:2], BRIEF), llm.stream(prompts[:2], BRIEF)
        next(stream)
        if reason.startswith("rank"):
            with monkeypatch.context() as patched:
                fail_once(patched, llm, ModelRunner, "execute", WorkerError("rank 1 failed"), after=False)
                with pytest.raises(WorkerError, match="rank 1 failed"):
                    list(stream)
        else:
            llm.close()
        for call in (stream.__next__, untouched.__next__, partial(llm.generate, [[1]]), partial(llm.stream, [1])):
            with pytest.raises(EngineClosedError, match=f"the engine is closed: {re.escape(reason)}"):
                call()
        stream.close()
        llm.close()
        llm.close()
