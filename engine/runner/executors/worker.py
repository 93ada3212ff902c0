"""The main function of a worker process: one rank, which answers the messages of the engine's process."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from engine.engine_config import EngineConfig
from engine.models.layers.parallel import TensorParallel
from engine.models.model_config import ModelConfig
from engine.runner.executors.executor import Rank
from engine.runner.model_runner import ModelRunner
from engine.runner.step_tokens import StepTokens

# Longest wait for a rank that loads the model, compiles kernels and captures graphs.
START_TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class Failure:
    """What a worker sends instead of an answer when it fails.

    Attributes:
        text: one line on what happened.
        error: the exception, if a user can cause it (ModelError, for example).
        traceback: the worker's traceback; empty if the process died.
    """

    text: str
    error: Exception | None = None
    traceback: str = ""


class Progress:
    """How far each rank is, for the engine to see which one hangs: counts of messages and collectives, which all ranks
    meet in the same order. A rank that waits in a collective for another one is one further than that.

    Args:
        counts: one for each rank, in memory that the processes share.
        rank: whose steps are counted.
    """

    def __init__(self, counts: ctypes.Array[ctypes.c_int64], rank: int) -> None:
        self._counts, self._rank = counts, rank

    def step(self) -> None:
        self._counts[self._rank] += 1


def work(
    rank: int,
    pipe: Connection,
    counts: ctypes.Array[ctypes.c_int64],
    config: EngineConfig,
    model_config: ModelConfig,
    folder: Path | None,
    store: str,
) -> None:
    """Build a rank, then answer every message until the engine closes the pipe.

    Args:
        counts: of `Progress`.
        store: the ranks' rendezvous.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the engine alone ends the workers
    end_with_parent()
    with _reporting(pipe):
        _serve(rank, pipe, Progress(counts, rank), config, model_config, folder, store)
    os._exit(0)  # a normal exit would wait for collectives that other ranks may never join


@contextlib.contextmanager
def _reporting(pipe: Connection) -> Iterator[None]:
    """Send the engine what fails inside the block."""
    try:
        yield
    except (EOFError, BrokenPipeError):
        pass  # the engine has ended, or has closed this executor
    except Exception as error:
        users = isinstance(error, ValueError) or type(error).__module__.startswith(("engine.", "kernels."))
        text = " ".join(f"{type(error).__name__}: {error}".split())
        with contextlib.suppress(OSError):  # the engine may have closed the pipe
            pipe.send(Failure(text, error if users else None, traceback.format_exc()))


def end_with_parent() -> None:
    """End this process when its parent process ends, even if this one is blocked in a collective by then."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


def _serve(
    rank: int,
    pipe: Connection,
    progress: Progress,
    config: EngineConfig,
    model_config: ModelConfig,
    folder: Path | None,
    store: str,
) -> None:
    size = config.tensor_parallel_size
    if config.device == "cuda":
        torch.cuda.set_device(rank)
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.set_num_threads(max(1, torch.get_num_threads() // size))
    dist.init_process_group(
        "nccl" if config.device == "cuda" else "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=START_TIMEOUT_S),  # a rank may wait in a collective for one that still loads
    )
    part = Rank(config, model_config, folder, TensorParallel(rank, size, on_collective=progress.step))
    pipe.send((part.fitting_blocks(), part.num_host_blocks, part.block_bytes, part.backend_name))
    runner = part.allocate(pipe.recv())
    gc.freeze()
    pipe.send(None)
    if config.async_scheduling:
        _answer_beside(rank, pipe, runner, progress)
    while True:
        inputs = pipe.recv()
        progress.step()
        tokens = runner.execute(inputs)
        pipe.send(tokens if rank == 0 else None)


def _answer_beside(rank: int, pipe: Connection, runner: ModelRunner, progress: Progress) -> None:
    """Launch each plan as soon as its inputs come, while a thread waits for the tokens of those before and sends them.

    So a GPU need not wait for the host between two plans, and neither side can block in sending while the other does.
    """
    launched: queue.SimpleQueue[Callable[[], StepTokens] | None] = queue.SimpleQueue()

    def answer() -> None:
        with _reporting(pipe):
            while (finish := launched.get()) is not None:
                tokens = finish()
                pipe.send(tokens if rank == 0 else None)
            return
        os._exit(0)

    thread = threading.Thread(target=answer, name="answer", daemon=True)
    thread.start()
    try:
        while True:
            inputs = pipe.recv()
            progress.step()
            launched.put(runner.launch(inputs))
    finally:
        launched.put(None)
        thread.join()
