"""Steps with prompt chunks as CUDA graphs of everything but attention.

    graph                                         host               graph                                         host
    embedding, norm, projection, KV store of 0    attention of 0     output, MLP of 0, norm, projection ... of 1    ...

Attention depends on the chunks of a step, so the host launches it layer by layer; what lies between two attentions
depends on the number of tokens alone. A step of n tokens runs in the graphs of the smallest size with at least n
tokens; the other tokens are padding, whose keys and values are not stored and whose outputs nobody reads.

A piece reads its token ids, positions and slots, and the output of attention, from tensors that keep their addresses,
and writes q into another one. What else passes from one piece to the next lies in the memory pool of all graphs. The
pieces of a step are replayed in the order in which they were captured, so a later piece may reuse the memory of an
earlier one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from engine.models.blocks import CausalLM, DecoderLayer, layer_caches
from engine.runner.graphs.cuda_graphs import Capture, Step, bucket_for, estimate_bytes
from kernels.attention.backends import AttentionMetadata


def token_sizes(max_tokens: int) -> list[int]:
    """Numbers of tokens with graphs, ascending: 16, multiples of 32 up to 256, of 64 up to 1024, of an eighth of the
    power of two below from there on, and `max_tokens`."""
    sizes = {16, *range(32, 257, 32), *range(320, 1025, 64), max_tokens}
    power = 1024
    while power < max_tokens:
        sizes.update(range(power, 2 * power, power // 8))
        power *= 2
    return sorted(size for size in sizes if size <= max_tokens)


@dataclass
class _Pieces:
    """The pieces of all steps of one size; piece i ends before the attention of layer i, the last piece with `hidden`.

    `residuals[i]` is what piece i passes on beside q. A captured piece passes the same tensor in every replay.
    """

    replays: list[Step]
    residuals: list[Tensor | None]
    hidden: Tensor


class PieceGraphs:
    """The graphs of one runner for steps with prompt chunks.

    Args:
        model, kv_cache: as those of `CausalLM.forward`.
        max_tokens: most tokens of a step that runs in pieces.
        capture: captures a piece. Capturing also runs the piece once, with padding only.
    """

    def __init__(self, model: CausalLM, kv_cache: Tensor, max_tokens: int, capture: Capture) -> None:
        self._model = model
        self._layers: list[DecoderLayer] = list(model.layers)
        self._caches = layer_caches(kv_cache)
        self._capture = capture
        self._max_tokens = max_tokens
        self.sizes = token_sizes(max_tokens)
        self._by_size: dict[int, _Pieces] = {}
        device, first = kv_cache.device, self._layers[0].attention
        self._ids, self._positions, self._slots = torch.zeros(3, max_tokens, dtype=torch.int64, device=device)
        self._padding = torch.full((max_tokens,), -1, device=device)
        self._queries, self._attended = (
            torch.zeros(max_tokens, first.heads[0], width, dtype=model.norm.weight.dtype, device=device)
            for width in (first.head_dim, first.output_dim)
        )

    def takes(self, num_tokens: int) -> bool:
        """Whether a step of `num_tokens` tokens runs in pieces."""
        return num_tokens <= self._max_tokens

    def capture_all(self) -> None:
        """Capture the pieces of all sizes, largest first."""
        for size in reversed(self.sizes):
            self.capture(size)

    def capture(self, size: int) -> None:
        """Capture the pieces of a size, in the order in which they run."""
        self._slots.fill_(-1)
        made = self._by_size[size] = _Pieces([], [], self._queries)
        for index in range(len(self._layers) + 1):
            replay = self._capture(partial(self._run_piece, made, index, size))
            made.replays.append(replay)
            replay()  # the next piece is captured with what this one passes on
            if index:  # nobody needs this residual any more: later pieces may have its memory
                made.residuals[index - 1] = None

    def capture_bytes(self, free_bytes: Callable[[], int]) -> int:
        """Estimate the device memory that all graphs will take, in bytes; see `estimate_bytes`."""
        captures = [partial(self.capture, size) for size in reversed(self.sizes)]
        return estimate_bytes(captures, len(captures), free_bytes)

    def place(
        self, ids: tuple[Tensor, ...], positions: tuple[Tensor, ...], slots: tuple[Tensor, ...], num_tokens: int
    ) -> Tensor:
        """Copy the parts of a step of `num_tokens` tokens to where the pieces read them.

        Returns the slots, int64[num_tokens], which stay there until the next call.
        """
        size = bucket_for(num_tokens, self.sizes)
        torch.cat(ids, out=self._ids[:num_tokens])
        torch.cat(positions, out=self._positions[:num_tokens])
        torch.cat((*slots, self._padding[num_tokens:size]), out=self._slots[:size])
        return self._slots[:num_tokens]

    def run(self, num_tokens: int, metadata: AttentionMetadata) -> Tensor:
        """Hidden states, [num_tokens, hidden_size], of the tokens that were placed; valid until the next call."""
        made = self._by_size[bucket_for(num_tokens, self.sizes)]
        queries, attended = self._queries[:num_tokens], self._attended[:num_tokens]
        for index, (layer, cache) in enumerate(zip(self._layers, self._caches, strict=True)):
            made.replays[index]()
            layer.attention.attend(queries, cache, metadata, attended)
        made.replays[-1]()
        return made.hidden[:num_tokens]

    def _run_piece(self, made: _Pieces, index: int, size: int) -> None:
        """Run what lies between the attentions of the layers `index - 1` and `index`."""
        if index:
            residual = made.residuals[index - 1]
            assert residual is not None
            x, residual = self._layers[index - 1].end(self._attended[:size], residual)
        else:
            x, residual = self._model.embedding(self._ids[:size]), None
        if index == len(self._layers):
            made.hidden = self._model.norm.add(x, residual)[0]
            return
        queries, layer = self._queries[:size], self._layers[index]
        _, residual = layer.begin(x, residual, self._positions[:size], self._caches[index], self._slots[:size], queries)
        made.residuals[index : index + 1] = [residual]
