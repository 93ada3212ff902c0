"""Execution on several ranks: one worker process each, and a pipe from the engine to every worker.

    engine ──StepInputs──▶ rank 0 ──StepTokens──▶ engine
           ──StepInputs──▶ rank 1 ──done────────▶        (collectives among the ranks: NCCL on CUDA, gloo on the CPU)

Every rank gets the same inputs, and takes rank 0's tokens. With asynchronous scheduling, the inputs of the next plan
are sent while the ranks run this one. Pipes take messages of any size, and a pipe closes when the process at its other
end dies, so that the engine notices a dead worker at once, and a worker a dead engine. Every wait for a rank has a time
limit. The ranks find each other through a file in a temporary folder, so that a crash leaves neither an open port nor
shared memory behind.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import multiprocessing
import signal
import socket
import struct
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from engine.engine_config import EngineConfig
from engine.models.model_config import ModelConfig
from engine.runner.executors.executor import LocalExecutor
from engine.runner.executors.worker import START_TIMEOUT_S, Failure, work
from engine.runner.inputs.step_inputs import StepInputs
from engine.runner.step_tokens import StepTokens

_JOIN_S = 5.0
_MORE_FAILURES_S = 1.0  # wait for other failures after the first one, which may be only a consequence of theirs


class WorkerError(RuntimeError):
    """A worker failed, died or did not answer in time; the message is one line. The executor is closed.

    Notes of the exception (`__notes__`) hold the worker's traceback.
    """


class _SecondInterruptError(BaseException):
    """Ctrl-C came twice during one plan."""


@dataclass(frozen=True)
class _Worker:
    rank: int
    process: BaseProcess
    pipe: Connection


def make_executor(
    config: EngineConfig, model_config: ModelConfig, folder: Path | None = None
) -> LocalExecutor | TensorParallelExecutor:
    """The executor for `tensor_parallel_size` ranks; raises what `LocalExecutor` or `TensorParallelExecutor` raises.

    All objects that exist by then are exempt from garbage collection (`gc.freeze`). A collection that visits everything
    that the libraries have loaded takes a quarter of a second, in the middle of a step.
    """
    executor = LocalExecutor if config.tensor_parallel_size == 1 else TensorParallelExecutor
    made = executor(config, model_config, folder)
    gc.freeze()
    atexit.register(gc.unfreeze)  # Triton reports what the last collection, of the interpreter's end, does not free
    return made


class TensorParallelExecutor:
    """`config.tensor_parallel_size` ranks, each in a process of its own; takes the arguments of `Rank`.

    Raises:
        ModelError, OutOfMemoryError, BackendUnavailableError: as `LocalExecutor`.
        WorkerError: a worker failed in another way.
    """

    def __init__(self, config: EngineConfig, model_config: ModelConfig, folder: Path | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        rendezvous = TemporaryDirectory(prefix="twinserve-ranks-")  # its file is how the ranks find each other
        self._workers: list[_Worker] = []
        self._counts = context.RawArray(ctypes.c_int64, config.tensor_parallel_size)  # of `Progress`
        self._finalizer = weakref.finalize(self, _shut_down, self._workers, rendezvous)
        self._timeout_s = config.worker_timeout_s
        self._num_launched = 0  # plans whose answers are not received
        for rank in range(config.tensor_parallel_size):
            ours, theirs = context.Pipe()
            _limit_waiting(ours, self._timeout_s)
            arguments = (rank, theirs, self._counts, config, model_config, folder, f"{rendezvous.name}/store")
            process = context.Process(target=work, args=arguments, name=f"twinserve-rank-{rank}", daemon=True)
            process.start()
            theirs.close()
            self._workers.append(_Worker(rank, process, ours))
        ready = self._collect(START_TIMEOUT_S)
        self.num_blocks = min(blocks for blocks, *_ in ready)  # the same number on every rank
        _, self.num_host_blocks, self.block_bytes, self.backend_name = ready[0]
        self._send(self.num_blocks)
        self._collect(START_TIMEOUT_S)

    def execute(self, inputs: StepInputs) -> StepTokens:
        """Run a plan on all ranks and return rank 0's tokens; raises as `collect` does."""
        with self._exchange():
            self._begin(inputs)
            return self._end()

    def launch(self, inputs: StepInputs) -> None:
        """Run a plan on all ranks when those that were launched before it have ended; does not wait for it, and raises
        as `collect` does."""
        with self._exchange():
            self._begin(inputs)

    def collect(self) -> StepTokens:
        """Wait for the plan that was launched first, of those not collected, and return rank 0's tokens.

        Ctrl-C raises KeyboardInterrupt after the plan, because half an exchange of messages cannot be taken up again. A
        second Ctrl-C raises it at once and closes the executor.

        Raises:
            WorkerError: a rank failed, or the executor is closed.
        """
        with self._exchange():
            return self._end()

    def forget(self) -> None:
        """Drop the tokens of all plans that were launched, and wait for these plans."""
        with contextlib.suppress(Exception), self._exchange():  # the next plan says that the executor is closed
            while self._num_launched:
                self._end()

    @contextlib.contextmanager
    def _exchange(self) -> Iterator[None]:
        """Wraps an exchange of messages with the workers."""
        if not self._finalizer.alive:
            raise WorkerError("the workers have ended")
        try:
            with _interrupts_after():
                yield
        except _SecondInterruptError:
            self._end_workers()
            raise KeyboardInterrupt from None

    def _begin(self, inputs: StepInputs) -> None:
        self._num_launched += 1
        self._send(inputs)

    def _end(self) -> StepTokens:
        tokens: StepTokens = self._collect(self._timeout_s)[0]
        self._num_launched -= 1
        return tokens

    def close(self) -> None:
        """End the workers and remove the temporary folder."""
        self._finalizer()
        gc.unfreeze()

    def _send(self, message: Any) -> None:
        """Send a message to every worker."""
        for worker in self._workers:
            try:
                worker.pipe.send(message)
            except BlockingIOError:
                raise self._late([worker], self._timeout_s) from None
            except OSError:
                return  # the worker died; `_collect` raises its exit code

    def _collect(self, timeout_s: float) -> list[Any]:
        """Wait for one answer of every worker and return them by rank; raises the failure that came first."""
        answers: dict[int, Any] = {}
        failures: list[tuple[int, Failure]] = []
        pending = {worker.pipe: worker for worker in self._workers}
        deadline = time.monotonic() + timeout_s
        while pending:
            ready = wait(list(pending), max(0.0, deadline - time.monotonic()))
            if not ready and not failures:
                raise self._late(list(pending.values()), timeout_s)
            if not ready:
                break
            for pipe in ready:
                worker = pending.pop(pipe)  # type: ignore[call-overload]
                answer = _receive(worker)
                answers[worker.rank] = answer
                if isinstance(answer, Failure):
                    failures.append((worker.rank, answer))
                    deadline = min(deadline, time.monotonic() + _MORE_FAILURES_S)
        if failures:
            raise self._failed(failures)
        return [answers[rank] for rank in sorted(answers)]

    def _failed(self, failures: list[tuple[int, Failure]]) -> Exception:
        """Close the executor; returns the failure that caused the others: a user's error, else a process that died."""
        self._end_workers()
        users = [failure.error for _, failure in failures if failure.error is not None]
        if users:
            return users[0]
        died = [(rank, failure) for rank, failure in failures if not failure.traceback]
        rank, failure = (died or failures)[0]
        error = WorkerError(f"rank {rank} failed: {failure.text}")
        if failure.traceback:
            error.add_note(f"rank {rank}: {failure.traceback}")
        return error

    def _late(self, workers: list[_Worker], timeout_s: float) -> WorkerError:
        """Close the executor; returns the error for workers that did not answer in time. It names the one that hangs,
        which is behind the others: they wait for it in a collective."""
        self._end_workers()
        counts = {worker.rank: self._counts[worker.rank] for worker in workers}
        behind = sorted(rank for rank, count in counts.items() if count == min(counts.values()))
        which = "it hangs" if len(behind) == 1 else "one of them hangs"
        others = f": {which}, and the others wait for it" if len(workers) > 1 else ""
        return WorkerError(f"no answer from rank {', '.join(map(str, behind))} within {timeout_s:g} s{others}")

    def _end_workers(self) -> None:
        """Close the executor without waiting for the workers, which may hang."""
        for worker in self._workers:
            worker.process.kill()
        self.close()


@contextlib.contextmanager
def _interrupts_after() -> Iterator[None]:
    """Put SIGINT off to the end of the block; a second SIGINT raises _SecondInterruptError in it."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield  # Python handles signals in the main thread only
        return
    came: list[tuple[int, FrameType | None]] = []

    def put_off(number: int, frame: FrameType | None) -> None:
        if came:
            raise _SecondInterruptError
        came.append((number, frame))

    signal.signal(signal.SIGINT, put_off)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        before(*came[0])


def _limit_waiting(pipe: Connection, timeout_s: float) -> None:
    """Let sending and receiving on a pipe raise BlockingIOError when the other end does not go on for `timeout_s`."""
    seconds, rest = divmod(timeout_s, 1)
    limit = struct.pack("ll", int(seconds), max(1, int(rest * 1e6)))
    with socket.socket(fileno=pipe.fileno()) as view:
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            view.setsockopt(socket.SOL_SOCKET, option, limit)
        view.settimeout(None)  # the default of new socket objects may be another one
        view.detach()  # the pipe keeps the descriptor


def _receive(worker: _Worker) -> Any:
    """A worker's answer; a Failure if it died."""
    try:
        return worker.pipe.recv()
    except BlockingIOError:
        return Failure("it stopped in the middle of an answer")
    except (EOFError, OSError):
        worker.process.join(_JOIN_S)
        return Failure(f"the process ended with exit code {worker.process.exitcode}")


def _shut_down(workers: list[_Worker], rendezvous: TemporaryDirectory[str]) -> None:
    for worker in workers:
        worker.pipe.close()  # a worker that waits for inputs then ends by itself
    deadline = time.monotonic() + _JOIN_S
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        if worker.process.exitcode is None:
            worker.process.kill()
            worker.process.join(_JOIN_S)
    rendezvous.cleanup()
