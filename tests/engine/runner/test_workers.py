"""Tensor-parallel workers that die, hang or drift apart, and engines that are killed."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from engine.api import llm as llm_module  # noqa: E402
from engine.api.calls import EngineClosedError  # noqa: E402
from engine.api.llm import LLM  # noqa: E402
from engine.engine_config import EngineConfig  # noqa: E402
from engine.models.layers import parallel  # noqa: E402
from engine.models.layers.parallel import TensorParallel  # noqa: E402
from engine.models.model_config import ModelConfig  # noqa: E402
from engine.runner import model_runner  # noqa: E402
from engine.runner.executors.tensor_parallel import (  # noqa: E402
    TensorParallelExecutor,
    WorkerError,
    _interrupts_after,
    _limit_waiting,
    _SecondInterruptError,
)
from engine.runner.executors.worker import Progress  # noqa: E402
from tests.engine.builders import GREEDY, MODEL, SETTINGS, generate, make_prompts  # noqa: E402


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files that no other process uses."""
    forkserver.ensure_running()  # with a temporary folder of its own, elsewhere
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


@pytest.fixture
def streaming(temporary: Path) -> Any:
    """An engine of two ranks that has begun to serve prompts, its worker processes, and what it still has to give."""
    llm = LLM(MODEL, **SETTINGS, tensor_parallel_size=2, worker_timeout_s=3.0)
    stream = llm.stream(make_prompts(), GREEDY)
    next(stream)
    yield llm, multiprocessing.active_children(), stream
    for child in multiprocessing.active_children():
        child.kill()


@pytest.fixture(autouse=True)
def _interrupts() -> Iterator[None]:
    """Interrupts raise, also where a shell started the tests in the background, whose children ignore them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_killed_worker_ends_the_run_and_leaves_nothing(streaming: Any, temporary: Path) -> None:
    llm, (victim, _), stream = streaming
    assert list(temporary.iterdir())
    os.kill(victim.pid, signal.SIGKILL)
    name = victim.name.removeprefix("twinserve-rank-")
    with pytest.raises(WorkerError, match=f"^rank {name} failed: the process ended with exit code -9$"):
        list(stream)
    assert multiprocessing.active_children() == []
    assert list(temporary.iterdir()) == []
    with pytest.raises(WorkerError, match="the workers have ended"):
        llm.engine._executor.execute(None)
    with pytest.raises(EngineClosedError, match=f"^the engine is closed: rank {name} failed"):
        llm.generate([[1]])


@pytest.mark.parametrize("hung", [0, 1])
def test_interrupts_wait_for_the_plan_and_a_hanging_worker_is_named_and_killed(
    streaming: Any, temporary: Path, monkeypatch: pytest.MonkeyPatch, hung: int
) -> None:
    """The rank that does not hang waits for the other one in a collective, and is not named."""
    llm, workers, _ = streaming
    victim = next(worker for worker in workers if worker.name == f"twinserve-rank-{hung}")
    executor: TensorParallelExecutor = llm.engine._executor
    collect, inputs = executor._collect, llm.engine._builder.build(llm.engine.scheduler.schedule(0))

    def interrupt(timeout_s: float) -> list[Any]:
        os.kill(os.getpid(), signal.SIGINT)
        return collect(timeout_s)

    monkeypatch.setattr(executor, "_collect", interrupt)
    with pytest.raises(KeyboardInterrupt):
        executor.execute(inputs)
    monkeypatch.setattr(executor, "_collect", collect)
    assert not any(worker.pipe.poll() for worker in executor._workers), "an answer is left in a pipe"
    assert len(multiprocessing.active_children()) == 2
    os.kill(victim.pid, signal.SIGSTOP)
    with pytest.raises(
        WorkerError, match=f"^no answer from rank {hung} within 3 s: it hangs, and the others wait for it$"
    ):
        executor.execute(inputs)
    assert multiprocessing.active_children() == []
    assert list(temporary.iterdir()) == []


def test_a_rank_counts_a_collective_before_it_waits_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = multiprocessing.get_context("spawn").RawArray(ctypes.c_int64, 3)
    seen: list[int] = []
    for name in ("all_reduce", "broadcast"):
        monkeypatch.setattr(dist, name, lambda *_, **__: seen.append(counts[1]))
    monkeypatch.setattr(parallel, "_all_gather", lambda *_, **__: seen.append(counts[1]))
    tp = TensorParallel(1, 3, on_collective=Progress(counts, 1).step)
    for collective in (tp.all_reduce, tp.all_gather, tp.from_rank_0):
        collective(torch.zeros(2, 2))
    assert seen == [1, 2, 3] and list(counts) == [0, 3, 0]


def test_a_second_interrupt_ends_at_once() -> None:
    with pytest.raises(_SecondInterruptError), _interrupts_after():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_sending_and_receiving_have_a_limit() -> None:
    """A process that is stopped reads nothing, and a pipe holds less than the inputs of a large plan."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    _limit_waiting(ours, 0.05)
    with pytest.raises(BlockingIOError):
        ours.send(b" " * (8 << 20))
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    _limit_waiting(ours, 0.05)
    with pytest.raises(BlockingIOError):
        ours.recv()
    theirs.send("a message")
    assert ours.recv() == "a message"


def ends(pid: int) -> bool:
    """Whether the process ends within a minute."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if not Path(f"/proc/{pid}").exists():
            return True
        time.sleep(0.05)
    return False


def serve_without_end(pids: Connection) -> None:
    """Serve on two ranks, and send the process ids of the ranks once they do."""
    multiprocessing.set_forkserver_preload(["engine.runner.executors.worker"])  # of a server of its own
    forked = multiprocessing.get_context("forkserver")
    multiprocessing.get_context = lambda method=None: forked  # type: ignore[assignment]
    llm = LLM(MODEL, **SETTINGS, tensor_parallel_size=2)
    llm.generate(make_prompts()[:2], GREEDY)
    pids.send([child.pid for child in multiprocessing.active_children()])
    while True:
        llm.generate(make_prompts()[:2], GREEDY)


def test_workers_of_a_killed_engine_end(temporary: Path) -> None:
    """One worker is blocked in a collective when the engine dies, because the other one is stopped."""
    forked = multiprocessing.get_context("forkserver")
    ours, theirs = forked.Pipe()
    engine = forked.Process(target=serve_without_end, args=(theirs,))
    engine.start()
    stopped, blocked = ours.recv()
    try:
        os.kill(stopped, signal.SIGSTOP)
        time.sleep(0.5)  # the other one arrives in the collective
        engine.kill()
        engine.join()
        assert ends(blocked)
    finally:
        os.kill(stopped, signal.SIGCONT)
        engine.kill()
    assert ends(stopped)


class Drift:
    """Becomes None where it is unpickled, in a worker, whose rank then samples other tokens than rank 0."""

    def __reduce__(self) -> Any:
        return drift, ()


def drift() -> None:
    sample = model_runner.sample

    def sample_others(logits: Any, *arguments: Any, **options: Any) -> Any:
        sampled = sample(logits, *arguments, **options)
        return (sampled + dist.get_rank()) % logits.shape[1]

    model_runner.sample = sample_others


def test_ranks_take_the_tokens_of_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(config: EngineConfig, model: ModelConfig, folder: Path | None) -> TensorParallelExecutor:
        return TensorParallelExecutor(config, model, Drift())  # type: ignore[arg-type]

    params = replace(GREEDY, max_tokens=4)
    expected = generate(params)
    monkeypatch.setattr(llm_module, "make_executor", make)
    assert generate(params, tensor_parallel_size=2) == expected
