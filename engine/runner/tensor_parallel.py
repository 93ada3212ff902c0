"""Execution on several ranks: one worker process each, and a pipe from the engine to every worker.

    engine ──StepInputs──▶ rank 0 ──StepTokens──▶ engine
           ──StepInputs──▶ rank 1 ──done────────▶        (collectives among the ranks: NCCL on CUDA, gloo on the CPU)

Every rank gets the same inputs. Pipes take messages of any size, and a pipe closes when the process at its other end
dies, so that the engine notices a dead worker at once. The ranks find each other through a file in a temporary folder,
so that a crash leaves neither an open port nor shared memory behind.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import tempfile
import traceback
import weakref
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from engine.engine_config import EngineConfig
from engine.models.model_config import ModelConfig
from engine.models.parallel import TensorParallel
from engine.runner.executor import LocalExecutor, Rank
from engine.runner.model_runner import StepTokens
from engine.runner.step_inputs import StepInputs

_JOIN_S = 5.0


class WorkerError(RuntimeError):
    """A worker failed or died; the message holds its traceback or exit code. The executor is closed."""


@dataclass(frozen=True)
class _Failure:
    """What a worker sends instead of an answer when it fails."""

    error: Exception | None  # the exception, if a user can cause it (ModelError, for example); it is raised again
    text: str


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
    return made


class TensorParallelExecutor:
    """`config.tensor_parallel_size` ranks, each in a process of its own; takes the arguments of `Rank`.

    Raises:
        ModelError, OutOfMemoryError, BackendUnavailableError: as `LocalExecutor`.
        WorkerError: a worker failed in another way.
    """

    def __init__(self, config: EngineConfig, model_config: ModelConfig, folder: Path | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        rendezvous = tempfile.TemporaryDirectory(prefix="twinserve-")
        self._workers: list[_Worker] = []
        self._finalizer = weakref.finalize(self, _shut_down, self._workers, rendezvous)
        for rank in range(config.tensor_parallel_size):
            ours, theirs = context.Pipe()
            arguments = (rank, theirs, config, model_config, folder, str(Path(rendezvous.name) / "store"))
            process = context.Process(target=_work, args=arguments, name=f"twinserve-rank-{rank}", daemon=True)
            process.start()
            theirs.close()
            self._workers.append(_Worker(rank, process, ours))
        ready = self._collect()
        self.num_blocks = min(blocks for blocks, _ in ready)  # the same number on every rank
        self.backend_name = ready[0][1]
        self._ask(self.num_blocks)

    def execute(self, inputs: StepInputs) -> StepTokens:
        """Run a plan on all ranks and return rank 0's tokens; raises WorkerError if a rank fails or has died."""
        tokens: StepTokens = self._ask(inputs)[0]
        return tokens

    def close(self) -> None:
        """End the workers and remove the temporary folder."""
        self._finalizer()
        gc.unfreeze()

    def _ask(self, message: Any) -> list[Any]:
        """Send a message to every worker and return their answers, by rank."""
        for worker in self._workers:
            try:
                worker.pipe.send(message)
            except OSError:
                break  # the worker died; `_collect` raises its exit code
        return self._collect()

    def _collect(self) -> list[Any]:
        """Wait for one answer of every worker and return them by rank; raises the first failure."""
        answers: dict[int, Any] = {}
        pending = {worker.pipe: worker for worker in self._workers}
        while pending:
            for pipe in wait(list(pending)):
                worker = pending.pop(pipe)  # type: ignore[call-overload]
                try:
                    answer = worker.pipe.recv()
                except (EOFError, OSError):
                    worker.process.join(_JOIN_S)
                    answer = _Failure(None, f"the process ended with exit code {worker.process.exitcode}")
                if isinstance(answer, _Failure):
                    self.close()
                    raise answer.error or WorkerError(f"rank {worker.rank} failed: {answer.text}")
                answers[worker.rank] = answer
        return [answers[rank] for rank in sorted(answers)]


def _shut_down(workers: list[_Worker], rendezvous: tempfile.TemporaryDirectory[str]) -> None:
    for worker in workers:
        worker.pipe.close()  # a worker that waits for inputs then ends by itself
    for worker in workers:
        worker.process.join(_JOIN_S if worker.process.exitcode is None else 0)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
    rendezvous.cleanup()


def _work(
    rank: int, pipe: Connection, config: EngineConfig, model_config: ModelConfig, folder: Path | None, store: str
) -> None:
    """The main function of a worker: build its rank, then answer every message until the engine closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the engine alone ends the workers
    try:
        _serve(rank, pipe, config, model_config, folder, store)
    except (EOFError, BrokenPipeError):
        pass  # the engine has ended, or has closed this executor
    except Exception as error:
        users = isinstance(error, ValueError) or type(error).__module__.startswith(("engine.", "kernels."))
        _send(pipe, _Failure(error if users else None, traceback.format_exc()))
    os._exit(0)  # a normal exit would wait for collectives that other ranks may never join


def _serve(
    rank: int, pipe: Connection, config: EngineConfig, model_config: ModelConfig, folder: Path | None, store: str
) -> None:
    size = config.tensor_parallel_size
    if config.device == "cuda":
        torch.cuda.set_device(rank)
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.set_num_threads(max(1, torch.get_num_threads() // size))
    backend = "nccl" if config.device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size)
    part = Rank(config, model_config, folder, TensorParallel(rank, size))
    pipe.send((part.fitting_blocks(), part.backend_name))
    runner = part.allocate(pipe.recv())
    gc.freeze()
    pipe.send(None)
    while True:
        tokens = runner.execute(pipe.recv())
        pipe.send(tokens if rank == 0 else None)


def _send(pipe: Connection, message: object) -> None:
    with contextlib.suppress(OSError):  # the engine may have closed the pipe
        pipe.send(message)
