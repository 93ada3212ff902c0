"""Decode steps as CUDA graphs: captured once for a few batch sizes, replayed for all.

A batch of n rows is served by the graph of the smallest bucket that holds it; its other rows are padding. A graph
holds the whole step: positions and slots from the decode rows, the model, logits, sampling, and the tokens' way back
into the rows. So the replays of a plan follow each other with nothing to do for the host in between.

Graphs are captured largest first into one memory pool, so that smaller ones find their memory there. Those that filter
by top-k or top-p need a sort of the vocabulary, and are captured when a request first asks for one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from engine.models.model_config import ModelError

_MOST_GRAPH_BYTES = 64 << 20

Step = Callable[[], None]
Capture = Callable[[Step], Step]
"""From a function that launches kernels on static tensors to one that launches them again."""


def buckets(max_num_seqs: int) -> list[int]:
    """Batch sizes with a graph, ascending: 1, 2, 4, multiples of 8 up to 64, of 16 above, and `max_num_seqs`."""
    sizes = {1, 2, 4, *range(8, 65, 8), *range(80, max_num_seqs, 16), max_num_seqs}
    return sorted(size for size in sizes if size <= max_num_seqs)


def bucket_for(num_decodes: int, sizes: Sequence[int]) -> int:
    """The smallest of the ascending `sizes` that holds a batch."""
    return next(size for size in sizes if size >= num_decodes)


def capture_nothing(step: Step) -> Step:
    """Stands in for capturing where there is no CUDA: the step runs as it is, in the same padded buckets."""
    return step


class CudaCapture:
    """Captures steps on a stream of their own, all in one memory pool."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Step) -> Step:
        """Run the step once, which compiles its kernels, then capture it; its effects happen once."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            step()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads of the process, such as NCCL's watchdog, may call CUDA meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            step()
        replay: Step = graph.replay
        return replay


def uses_graphs(setting: bool | str, device: torch.device, is_capturable: bool, backend: str) -> bool:
    """Whether decode steps run in buckets under the engine's `cuda_graphs`; "auto" is where they can be captured.

    Raises:
        ModelError: graphs are asked for on a GPU with an attention backend that cannot be captured.
    """
    if device.type != "cuda":
        return setting is True
    if setting is True and not is_capturable:
        raise ModelError(f"cuda_graphs=true: attention backend {backend!r} cannot be captured; choose another one")
    return setting is not False and is_capturable


def make_capture(device: torch.device) -> Capture:
    """How steps are captured on a device, for the graphs of one runner."""
    return CudaCapture(device) if device.type == "cuda" else capture_nothing


class DecodeGraphs:
    """The graphs of one runner.

    Args:
        step: launches one decode step of that many rows, filtered by top-k and top-p or not.
        max_num_seqs: the largest batch.
        capture: how to capture; it runs the step, so the rows must be blank.
    """

    def __init__(self, step: Callable[[int, bool], None], max_num_seqs: int, capture: Capture) -> None:
        self._step = step
        self._capture = capture
        self._replays: dict[tuple[int, bool], Step] = {}
        self.buckets = buckets(max_num_seqs)

    def capture_all(self) -> None:
        """Capture the graphs that do not filter, largest first."""
        for bucket in reversed(self.buckets):
            self.capture(bucket, filtered=False)

    def has(self, num_decodes: int, filtered: bool) -> bool:
        return (bucket_for(num_decodes, self.buckets), filtered) in self._replays

    def capture(self, num_decodes: int, filtered: bool) -> None:
        """Capture the graph for a batch."""
        bucket = bucket_for(num_decodes, self.buckets)
        self._replays[bucket, filtered] = self._capture(lambda: self._step(bucket, filtered))

    def replay(self, num_decodes: int, num_steps: int, filtered: bool) -> None:
        """Launch consecutive steps of a batch whose graph was captured."""
        replay = self._replays[bucket_for(num_decodes, self.buckets), filtered]
        for _ in range(num_steps):
            replay()

    def capture_bytes(self, free_bytes: Callable[[], int]) -> int:
        """Device memory that all graphs take, estimated from the two largest, which are captured for that.

        `free_bytes` says how much is free. The largest one's pool serves the others too, so that each of them adds
        what the second largest did: mostly the driver's own record of the graph, and no more than `_MOST_GRAPH_BYTES`,
        above which it is a segment that the pool grew by. Both filter, which takes most.
        """
        sizes = self.buckets[::-1]
        free = [free_bytes()]
        for size in sizes[:2]:
            self.capture(size, filtered=True)
            free.append(free_bytes())
        others = free[1] - free[2] if len(free) > 2 else 0
        return max(0, free[0] - free[1]) + min(max(0, others), _MOST_GRAPH_BYTES) * (2 * len(sizes) - 1)
