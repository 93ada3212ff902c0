"""The CUDA graphs of vLLM, to whose sizes it pads steps."""

from __future__ import annotations

_LARGEST_GRAPH = 512


def graph_sizes(max_num_seqs: int, largest: int | None = None) -> tuple[int, ...]:
    """Token counts for which vLLM captures CUDA graphs: 1, 2, 4, by 8 to 256, by 16 to `largest`, by default twice
    `max_num_seqs` or 512."""
    largest = min(2 * max_num_seqs, _LARGEST_GRAPH) if largest is None else largest
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
    return tuple(size for size in sizes if size <= largest)


def count_graphs(max_num_seqs: int, largest: int | None = None) -> int:
    """CUDA graphs that vLLM captures: for each size in pieces, and whole for decode steps of up to `max_num_seqs`."""
    sizes = graph_sizes(max_num_seqs, largest)
    return len(sizes) + sum(size <= max_num_seqs for size in sizes)
