"""The CUDA graphs of vLLM, SGLang and TensorRT-LLM, to whose sizes they pad steps."""

from __future__ import annotations

_LARGEST_GRAPH = 512
ENGINES = ("sglang", "trtllm")  # those with graphs of their own, by the names of their policies


def graph_sizes(max_num_seqs: int, largest: int | None = None) -> tuple[int, ...]:
    """Token counts for which vLLM captures CUDA graphs: 1, 2, 4, by 8 to 256, by 16 to `largest`, by default twice
    `max_num_seqs` or 512."""
    largest = min(2 * max_num_seqs, _LARGEST_GRAPH) if largest is None else largest
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
    return tuple(size for size in sizes if size <= largest)


def decode_graphs(engine: str, max_num_seqs: int, largest: int | None, *, is_padded: bool) -> tuple[int, ...]:
    """Batch sizes for which SGLang or TensorRT-LLM captures CUDA graphs.

    SGLang: 1, 2, 4, 8, 12, by 8 to 256, by 16 to 512, by 32 to the largest (`generate_decode_cuda_graph_batch_sizes` of
    0.5.23, and 0.5.6 alike). TensorRT-LLM: 1, 2, 4, by 8 to 128, by 64 to the largest
    (`CudaGraphConfig._generate_cuda_graph_batch_sizes`; in earlier versions powers of two from 256 on).

    Args:
        engine: one of `ENGINES`.
        largest: None for as many as seats.
        is_padded: False where there is a graph for each number of sequences.
    """
    most = max_num_seqs if largest is None else largest
    if engine == "sglang":
        sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, most + 1, 32)]
    else:
        sizes = [1, 2, 4, *range(8, 129, 8), *range(192, most + 1, 64)]
    if not is_padded:
        return tuple(range(1, most + 1))
    return tuple(sorted({size for size in sizes if size < most} | ({most} if most else set())))


def count_graphs(max_num_seqs: int, largest: int | None = None) -> int:
    """CUDA graphs that vLLM captures: for each size in pieces, and whole for decode steps of up to `max_num_seqs`."""
    sizes = graph_sizes(max_num_seqs, largest)
    return len(sizes) + sum(size <= max_num_seqs for size in sizes)
