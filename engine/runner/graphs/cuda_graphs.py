"""Decode steps as CUDA graphs: captured once for a few batch sizes, replayed for all.

A batch of n rows runs in the graph of the smallest bucket with at least n rows; the other rows are padding. A graph
contains the whole step: it reads positions and slots from the decode rows, runs the model, computes logits, samples,
and writes the tokens back to the rows. So the host launches all steps of a plan without any work between two replays.

Graphs are captured largest first into one memory pool, whose memory the smaller graphs reuse. Every bucket has two
graphs: one that samples from all tokens, and one that filters by top-k and top-p, for which it sorts the vocabulary. A
filtering graph is captured when a batch first needs it.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from functools import partial

import torch

from engine.models.model_config import ModelError

_MOST_GRAPH_BYTES = 64 << 20

Step = Callable[[], None]
Capture = Callable[[Step], Step]
"""Takes a step that launches kernels on static tensors; returns a function that launches the same kernels again."""


def buckets(max_num_seqs: int) -> list[int]:
    """Batch sizes with a graph, ascending: 1, 2, 4, multiples of 8 up to 64, of 16 above, and `max_num_seqs`."""
    sizes = {1, 2, 4, *range(8, 65, 8), *range(80, max_num_seqs, 16), max_num_seqs}
    return sorted(size for size in sizes if size <= max_num_seqs)


def bucket_for(num_decodes: int, sizes: abc.Sequence[int]) -> int:
    """The smallest of the ascending `sizes` that is at least `num_decodes`."""
    return next(size for size in sizes if size >= num_decodes)


def capture_nothing(step: Step) -> Step:
    """The `Capture` of a device without CUDA graphs: returns the step itself, which runs in the same padded buckets."""
    return step


class CudaCapture:
    """Captures steps on a side stream, all into one memory pool."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Step) -> Step:
        """Run the step once, which compiles its kernels, then capture it. Capturing does not run the step again."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            step()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # "thread_local": other threads, such as NCCL's watchdog, may call CUDA during the capture.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            step()
        replay: Step = graph.replay
        return replay


def uses_graphs(setting: bool | str, device: torch.device, is_capturable: bool, backend: str) -> bool:
    """Whether decode steps run in buckets, given `EngineConfig.cuda_graphs` as `setting`.

    On a GPU, "auto" means yes if the steps can be captured. On the CPU, only True means yes.

    Raises:
        ModelError: the setting is True on a GPU, but the attention backend cannot be captured.
    """
    if device.type != "cuda":
        return setting is True
    if setting is True and not is_capturable:
        raise ModelError(f"cuda_graphs=true: attention backend {backend!r} cannot be captured; choose another one")
    return setting is not False and is_capturable


def make_capture(device: torch.device) -> Capture:
    """A new `Capture` for the graphs of one runner."""
    return CudaCapture(device) if device.type == "cuda" else capture_nothing


def estimate_bytes(captures: abc.Sequence[Step], number: int, free_bytes: Callable[[], int]) -> int:
    """Estimate the device memory that `number` captures will take, in bytes, by making the first two of `captures`.

    `free_bytes` returns the free device memory. All captures share one memory pool, which the first, largest one fills;
    every other one is assumed to add as much as the second one. That is mostly the driver's own record of the graphs.
    An increase above `_MOST_GRAPH_BYTES` is the pool growing by a segment, so it is cut to that.
    """
    free = [free_bytes()]
    for capture in captures[:2]:
        capture()
        free.append(free_bytes())
    others = free[1] - free[2] if len(free) > 2 else 0
    return max(0, free[0] - free[1]) + min(max(0, others), _MOST_GRAPH_BYTES) * (number - 1)


class DecodeGraphs:
    """The graphs of one runner.

    Args:
        step: `step(num_rows, filtered)` launches one decode step of the first `num_rows` rows; `filtered` says whether
            sampling applies top-k and top-p.
        max_num_seqs: the largest batch.
        capture: captures a step. Capturing also runs the step once, so all rows must be padding meanwhile.
    """

    def __init__(self, step: Callable[[int, bool], None], max_num_seqs: int, capture: Capture) -> None:
        self._step = step
        self._capture = capture
        self._replays: dict[tuple[int, bool], Step] = {}
        self.buckets = buckets(max_num_seqs)

    def capture_all(self) -> None:
        """Capture the graphs without top-k and top-p, largest first."""
        for bucket in reversed(self.buckets):
            self.capture(bucket, filtered=False)

    def has(self, num_decodes: int, filtered: bool) -> bool:
        """Whether the graph for a batch of `num_decodes` rows is captured."""
        return (bucket_for(num_decodes, self.buckets), filtered) in self._replays

    def capture(self, num_decodes: int, filtered: bool) -> None:
        """Capture the graph for a batch of `num_decodes` rows."""
        bucket = bucket_for(num_decodes, self.buckets)
        self._replays[bucket, filtered] = self._capture(lambda: self._step(bucket, filtered))

    def replay(self, num_decodes: int, num_steps: int, filtered: bool) -> None:
        """Launch `num_steps` consecutive steps of a batch, whose graph must be captured."""
        replay = self._replays[bucket_for(num_decodes, self.buckets), filtered]
        for _ in range(num_steps):
            replay()

    def capture_bytes(self, free_bytes: Callable[[], int]) -> int:
        """Estimate the device memory that all graphs will take, in bytes; see `estimate_bytes`.

        The graphs that it captures filter by top-k and top-p, which takes the most memory.
        """
        captures = [partial(self.capture, size, filtered=True) for size in reversed(self.buckets)]
        return estimate_bytes(captures, 2 * len(captures), free_bytes)
