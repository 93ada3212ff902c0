"""The coarse grid of every family of measurements, within the limits of an engine."""

from __future__ import annotations

from simulator.profiler.bench import Limits, uneven_contexts
from simulator.profiler.grid import Grid, log_spaced
from simulator.profiler.whole_steps import longest_context

_FACTOR = 4.0  # between neighbours of a coarse grid
_LARGEST_OWN_POINT = 1024  # tokens; of the larger graphs the powers of two are measured, as times between are on a line
_SHORTEST_CONTEXT, _SHORTEST_START = 16, 64
_UNEVEN_PERCENT = (10, 25, 50, 100, 150)
_UNEVEN_MEANS = 3
_COPIES = (1, 4, 16)
_BESIDE_CONTEXTS = 4
_STEP_CONTEXTS = 2
_MIXED_BATCHES = (1, 8, 32)
_SHORTEST_CHUNK, _LONGEST_CHUNK = 16, 4096  # of the prompts of whole steps


def grids(limits: Limits) -> list[Grid]:
    """Families whose grids are refined: operators by tokens, decode and prefill attention."""
    tokens_of_graphs = [*limits.token_buckets, *limits.prompt_buckets]
    padded = [size for size in tokens_of_graphs if size <= _LARGEST_OWN_POINT or not size & (size - 1)]
    tokens = log_spaced(1, limits.num_tokens, _FACTOR, [limits.num_seqs, *padded])
    batches = log_spaced(1, limits.num_seqs, _FACTOR)
    last = max(1, limits.context - 1)  # the last token of a sequence is never fed back
    *shorter, _ = log_spaced(min(_SHORTEST_CONTEXT, last), last, _FACTOR)
    contexts = sorted({*(_inside_a_block(context, limits.block_size) for context in shorter), last})
    chunks = log_spaced(1, min(limits.num_tokens, limits.context), _FACTOR)
    starts = [0]
    if limits.context > _SHORTEST_START:
        starts += log_spaced(_SHORTEST_START, limits.context - 1, _FACTOR)
    fits_pool = (limits.num_blocks - 1) * limits.block_size
    return [
        Grid("tokens", [tokens], lambda sizes: sizes[0] <= fits_pool),
        Grid("decode", [batches, contexts], lambda sizes: limits.holds(*sizes)),
        Grid("prefill", [chunks, starts], lambda sizes: sum(sizes) <= min(limits.context, fits_pool)),
    ]


def others(limits: Limits) -> list[Grid]:
    """Families whose grids are not refined: uneven contexts, copies, all-reduces, whole steps, and what attention adds
    to other operators."""
    batches = log_spaced(1, limits.num_seqs, _FACTOR)
    longest = min(limits.context, longest_context(limits.max_model_len))
    uneven_batches = log_spaced(2, limits.num_seqs, _FACTOR) if limits.num_seqs > 1 else []
    uneven_means = sorted({max(1, limits.context // 4 ** (i + 1)) for i in range(_UNEVEN_MEANS)})
    step_contexts = sorted({max(1, longest // 4 ** (i + 1)) for i in range(_STEP_CONTEXTS)})
    chunks = log_spaced(min(_SHORTEST_CHUNK, limits.num_tokens), min(limits.num_tokens, _LONGEST_CHUNK), _FACTOR)
    mixed_batches = sorted({min(batch, max(1, limits.num_seqs - 1)) for batch in _MIXED_BATCHES})
    room = max(1, limits.num_tokens - mixed_batches[-1])
    mixed_chunks = log_spaced(min(_SHORTEST_CHUNK, room), min(room, _LONGEST_CHUNK), _FACTOR)

    def fits_mixed(sizes: tuple[int, ...]) -> bool:
        batch, context, num_tokens = sizes
        prompts = -(-num_tokens // longest)
        is_one_step = batch + prompts <= limits.num_seqs and batch + num_tokens <= limits.num_tokens
        return is_one_step and limits.holds(batch + prompts, max(context, -(-num_tokens // prompts)))

    def fits_uneven(sizes: tuple[int, ...]) -> bool:
        contexts = uneven_contexts(*sizes, limits.context)
        return limits.holds(sizes[0], sizes[1]) and contexts is not None and _fit_pool(contexts, limits)

    made = [
        Grid("uneven", [uneven_batches, uneven_means, list(_UNEVEN_PERCENT)], fits_uneven),
        Grid("copies", [[n for n in _COPIES if 2 * n <= limits.num_blocks]]),
        Grid("step_decode", [batches, step_contexts], lambda sizes: limits.holds(*sizes)),
        Grid("step_prefill", [chunks], lambda sizes: fits_mixed((0, 1, *sizes))),
        Grid("step_mixed", [mixed_batches, step_contexts[-1:], mixed_chunks], fits_mixed),
    ]
    if limits.on_cpu:
        contexts = sorted({max(1, longest // 4**i) for i in range(_BESIDE_CONTEXTS)})
        made.append(Grid("beside", [batches, contexts], lambda sizes: limits.holds(*sizes)))
    if limits.tensor_parallel_size > 1:
        each = limits.all_reduce_bytes
        made.append(Grid("all_reduce", [log_spaced(each, limits.num_tokens * each, _FACTOR)]))
    return made


def _fit_pool(contexts: tuple[int, ...], limits: Limits) -> bool:
    return sum(-(-context // limits.block_size) for context in contexts) < limits.num_blocks


def _inside_a_block(context: int, block_size: int) -> int:
    """`context` shortened by less than a block so that its last block is two thirds full.

    Kernels may skip the mask of a full block, which contexts rarely end with.
    """
    return context - (context - 2 * block_size // 3) % block_size if context >= block_size else context
