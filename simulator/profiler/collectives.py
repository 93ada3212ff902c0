"""All-reduce on the real group: as many processes as there are ranks, each with its own device."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist

from engine.runner.executors.worker import end_with_parent

_RUNS = 20
_TIMEOUT_S = 120.0
_JOIN_S = 5.0


class CollectiveError(RuntimeError):
    """A rank died or does not answer."""


class Collectives:
    """A group of ranks, each a process of its own, that times all-reduces of the sizes that it is sent."""

    def __init__(self, device: str, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._rendezvous = TemporaryDirectory(prefix="twinserve-ranks-")
        self._pipes, self._processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            arguments = (rank, size, device, theirs, f"{self._rendezvous.name}/store")
            process = context.Process(target=_serve, args=arguments, name=f"twinserve-collective-{rank}", daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def all_reduce(self, num_bytes: int) -> list[float]:
        """Times in us of all-reduces of `num_bytes` bytes in bfloat16.

        Raises:
            CollectiveError: a rank died or does not answer.
        """
        try:
            for pipe in self._pipes:
                pipe.send(num_bytes)
            if not self._pipes[0].poll(_TIMEOUT_S):
                raise CollectiveError(f"no all-reduce of {num_bytes} bytes within {_TIMEOUT_S:.0f} s")
            times: list[float] = self._pipes[0].recv()
        except (EOFError, OSError) as error:
            raise CollectiveError("a rank of the all-reduce group ended") from error
        return times

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(_JOIN_S)
            if process.is_alive():
                process.kill()
                process.join()
        self._rendezvous.cleanup()


def _serve(rank: int, size: int, device: str, pipe: Connection, store: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    if device == "cuda":
        torch.cuda.set_device(rank)
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.set_num_threads(1)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size)
    try:
        while True:
            times = _time(pipe.recv(), device)
            if rank == 0:
                pipe.send(times)
    except (EOFError, OSError):
        os._exit(0)  # the bench is gone; nobody joins another collective


def _time(num_bytes: int, device: str) -> list[float]:
    """Times in us; on a GPU of all-reduces back to back, as kernels follow each other in a step."""
    x = torch.zeros(max(1, num_bytes // 2), dtype=torch.bfloat16, device=device)
    dist.all_reduce(x)
    if device == "cuda":
        events = [torch.cuda.Event(enable_timing=True) for _ in range(1 + _RUNS)]
        dist.barrier()
        for event in events[:-1]:
            event.record()
            dist.all_reduce(x)
        events[-1].record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e3 for start, end in zip(events[:-1], events[1:], strict=True)]
    times = []
    for _ in range(_RUNS):
        dist.barrier()
        started = time.perf_counter()
        dist.all_reduce(x)
        times.append((time.perf_counter() - started) * 1e6)
    return times
