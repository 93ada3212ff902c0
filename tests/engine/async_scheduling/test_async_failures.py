"""Errors, Ctrl-C and dead ranks while two plans are under way: one clear error, and the engine serves on."""

from __future__ import annotations

import gc
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from engine.api.calls import EngineClosedError, RequestAbortedError  # noqa: E402
from engine.api.token_collector import TokenCollector  # noqa: E402
from engine.core.kv.block_manager import BlockManager  # noqa: E402
from engine.core.scheduler import Scheduler  # noqa: E402
from engine.runner.executors.tensor_parallel import WorkerError  # noqa: E402
from engine.runner.inputs.step_inputs import StepBuilder  # noqa: E402
from engine.runner.model_runner import ModelRunner  # noqa: E402
from tests.engine.async_scheduling.builders import BRIEF, PROMPTS, ahead, serve  # noqa: E402
from tests.engine.builders import STARVED, fail_once, interrupted  # noqa: E402

IN_THE_CORE = pytest.mark.interpreted("an error in the midst of it")
ERRORS: list[Any] = [
    (ModelRunner, "execute"), (Scheduler, "schedule"), (Scheduler, "commit"),
    pytest.param(BlockManager, "register", marks=IN_THE_CORE), (StepBuilder, "build"), (TokenCollector, "collect"),
    (TokenCollector, "add_forks"),
]  # fmt: skip


@pytest.mark.parametrize(("owner", "name"), ERRORS, ids=lambda each: getattr(each, "__name__", each))
@pytest.mark.sample(4)
def test_an_error_aborts_what_runs_and_the_engine_serves_on(
    owner: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = ahead()
    tokens = [output["token_ids"] for output in llm.generate(PROMPTS[:3], BRIEF)]
    other = llm.stream(PROMPTS[3:5], BRIEF)
    next(other)
    with monkeypatch.context() as patched:
        fail_once(patched, llm, owner, name, MemoryError(), after=True)
        with pytest.raises(MemoryError):
            llm.generate(PROMPTS[:3], BRIEF)
    with pytest.raises(RequestAbortedError):
        list(other)
    assert [output["token_ids"] for output in llm.generate(PROMPTS[:3], BRIEF)] == tokens
    llm.close()
    with pytest.raises(EngineClosedError):
        llm.generate(PROMPTS[:1], BRIEF)


@pytest.mark.parametrize("num_times", [12, pytest.param(600, marks=pytest.mark.slow)])
def test_ctrl_c_at_any_line_leaves_an_engine_that_serves(num_times: int) -> None:
    llm, rng, params = ahead(), random.Random(0), replace(BRIEF, max_tokens=6)
    tokens = [output["token_ids"] for output in llm.generate(PROMPTS[:3], params)]
    num_interrupted = 0
    for _ in range(num_times):
        num_interrupted += interrupted(llm, rng.randint(1, 4000) if rng.random() < 0.7 else rng.randint(1, 900))
        assert [output["token_ids"] for output in llm.generate(PROMPTS[:3], params)] == tokens
        gc.collect()
        assert not llm.engine.scheduler.unfinished
    assert num_interrupted > 0.3 * num_times
    llm.close()


@pytest.fixture
def _interrupts() -> Iterator[None]:
    """Interrupts raise, also where a shell started the tests in the background, whose children ignore them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interrupts")
def test_ranks_get_the_next_plan_while_they_run_one(expected: Any) -> None:  # noqa: F811
    """Two ranks generate the same, also after Ctrl-C with two plans under way; a dead rank is one clear error."""
    llm = ahead(**STARVED, tensor_parallel_size=2, worker_timeout_s=60.0)
    assert serve(llm) == expected
    stream = llm.stream(PROMPTS[:3], BRIEF)
    next(stream)
    executor: Any = llm.engine._executor
    assert executor._num_launched == 1
    collect = executor._collect

    def interrupt(timeout_s: float) -> Any:
        executor._collect = collect
        os.kill(os.getpid(), signal.SIGINT)
        return collect(timeout_s)

    executor._collect = interrupt
    with pytest.raises(KeyboardInterrupt):
        list(stream)
    assert executor._num_launched == 0 and not any(worker.pipe.poll() for worker in executor._workers)
    assert serve(llm) == expected
    stream = llm.stream(PROMPTS[:3], BRIEF)
    next(stream)
    os.kill(executor._workers[1].process.pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match="^rank 1 failed: the process ended with exit code -9$"):
        list(stream)
    with pytest.raises(EngineClosedError, match="^the engine is closed: rank 1 failed"):
        llm.generate([[1]])
