"""Bytes that a rank holds for a model's weights: their own, ends of torch's segments, and what experts are padded by.

In torch's caching allocator a large tensor has a segment of whole 2 MiB to itself.
"""

from simulator.models.block import Weights
from simulator.models.experts import Experts
from simulator.models.model import Model

_MIB = 1 << 20
# Of torch's caching allocator (c10/cuda/CUDACachingAllocator): kMinLargeAlloc, kRoundLarge, kSmallSize.
_OWN_SEGMENT, _SEGMENT_STEP, _LEAST_SPLIT = 10 * _MIB, 2 * _MIB, _MIB
_MXFP4_WIDTH = 256  # vllm/model_executor/layers/quantization/mxfp4.py


def weights_held(model: Model, drafter: Model | None, ranks: int) -> int:
    """Bytes of a rank's weights: of the model, its tower, which vLLM shares out as well, and a drafter."""
    tower = model.tower_parameters * model.dtype_bytes // ranks
    return tower + sum(each.weight_bytes(ranks) for each in (model, drafter) if each)


def unsplit_bytes(model: Model, tensor_parallel_size: int) -> int:
    """Ends of the segments that hold the model's large weights on one rank, which count as allocated.

    A tensor of at least `_OWN_SEGMENT` gets a segment of a multiple of `_SEGMENT_STEP`. What is left of it is split off
    for other tensors if it is more than `_LEAST_SPLIT`; otherwise it belongs to the tensor. The two matrices of all
    experts of a layer are one tensor each.
    """
    embedding = model.vocab_size * model.hidden_size // tensor_parallel_size * model.dtype_bytes
    embeddings = 1 if model.tie_word_embeddings else 2
    matrices = sum(
        count * _unsplit_end(_element_bytes(model, weights)) for count, weights in model.matrices(tensor_parallel_size)
    )
    return matrices + embeddings * _unsplit_end(embedding)


def padding_bytes(model: Model, tensor_parallel_size: int, *, both: bool) -> int:
    """What experts in MXFP4 are padded by on one rank, to multiples of `_MXFP4_WIDTH`: gpt-oss-120b takes 64.38 GiB on
    an H100 instead of 60.7."""
    if not model.quantization.experts_only:
        return 0
    padding = 0.0
    for count, block in model.of_kind(Experts):
        width, hidden = block.expert_width(tensor_parallel_size), model.hidden_size
        grown = _padded(width) * (_padded(hidden) if both else hidden) / (width * hidden)
        for weights in block.matrices(model, tensor_parallel_size):
            if weights.part == "experts":
                size = model.quantization.matrix_bytes(weights.rows, weights.columns, model.dtype_bytes)
                padding += count * weights.copies * size * (grown - 1)
    return round(padding)


def _padded(width: int) -> int:
    return -(-width // _MXFP4_WIDTH) * _MXFP4_WIDTH


def _element_bytes(model: Model, weights: Weights) -> int:
    """Bytes of matrices without their scales, which are tensors of their own."""
    bits = model.format_of(weights.part).weight_bits or 8 * model.dtype_bytes
    return weights.copies * (weights.rows * weights.columns * bits // 8)


def _unsplit_end(num_bytes: int) -> int:
    rest = -num_bytes % _SEGMENT_STEP
    return rest if num_bytes >= _OWN_SEGMENT and rest <= _LEAST_SPLIT else 0
