"""In place of TensorRT-LLM's KV cache manager, which is in C++: written after `kvCacheManager.cpp`.

Prefixes are found by whole blocks only; parts of a block, which TensorRT-LLM copies, are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

_WINDOW = 1 << 30  # of attention: without bounds
Key = tuple[int, ...]
"""The tokens of a block and of all before it."""


class KVCache:
    """Blocks with reference counts, a tree of stored ones by their prefix, and a queue of free ones."""

    max_attention_window_vec = (_WINDOW,)
    is_variable_window = False

    def __init__(self, num_blocks: int, block_size: int, *, enable_block_reuse: bool) -> None:
        self.enable_block_reuse = enable_block_reuse
        self._size = block_size
        self._references = [0] * num_blocks
        self._free = dict.fromkeys(range(num_blocks))  # whichever was freed first goes first
        self._tree: dict[Key, int] = {}
        self._keys: dict[int, Key] = {}
        self.tables: dict[int, list[int]] = {}
        self.num_tokens: dict[int, int] = {}
        self._scheduled: list[int] = []

    @property
    def num_used(self) -> int:
        return len(self._references) - len(self._free)

    # -- what the scheduler asks ----------------------------------------------------------------------------------

    def get_kv_cache_stats(self) -> Any:
        return SimpleNamespace(num_free_blocks_per_window_size={_WINDOW: len(self._free)})

    def start_scheduling(self) -> None:
        self._scheduled = [*self._references]

    def scheduling_has_free_blocks(self, count: int, window: int) -> bool:
        return count <= self._scheduled.count(0)

    def scheduling_remove_sequence(self, request_id: int) -> None:
        for block in self.tables[request_id]:
            self._scheduled[block] -= 1

    def analyze_prefix_reuse(self, tokens: Sequence[int], req: Any) -> Any:
        """The first full block that is not in the tree."""
        keys = self._full(tokens, len(tokens))
        return SimpleNamespace(first_new_block=next((key for key in keys if key not in self._tree), None))

    def get_remaining_blocks_to_completion(self, req: Any, window: int) -> int:
        req.estimated_reusable_tokens = 0
        total = self._blocks_for(req.prompt_len + req.max_new_tokens)
        held = len(self.tables.get(req.request_id, ()))
        shared = 0
        if self.enable_block_reuse and req.is_context_init_state and req.is_first_context_chunk and not held:
            shared = self._count_reusable(req)
        return total - held - shared

    def get_needed_blocks_one_step(self, req: Any, looks_two_steps_ahead: bool, window: int) -> int:
        req.estimated_reusable_tokens = 0
        if req.is_context_init_state and req.is_first_context_chunk:
            shared = self._count_reusable(req) if self.enable_block_reuse else 0
            return self._blocks_for(req.prompt_len) - shared
        if req.is_generation_in_progress_state:
            now = self.num_tokens[req.request_id]
            left = req.max_new_tokens - (now - req.prompt_len)
            return self._blocks_for(now + min(1, left)) - self._blocks_for(now)
        return 0

    def _count_reusable(self, req: Any) -> int:
        """Stored blocks of a prompt that others hold; notes how many tokens all stored ones have."""
        blocks = self._match(req.tokens[: req.prompt_len])
        req.estimated_reusable_tokens = len(blocks) * self._size
        return sum(self._references[block] > 0 for block in blocks)

    # -- what the engine does -------------------------------------------------------------------------------------

    def add_sequence(self, req: Any) -> int:
        """Give a prompt its blocks; returns how many of its tokens are stored."""
        matched = self._match(req.tokens[: req.prompt_len]) if self.enable_block_reuse else []
        for block in matched:
            self._free.pop(block, None)
            self._references[block] += 1
        self.tables[req.request_id] = table = [*matched]
        for _ in range(self._blocks_for(req.prompt_len) - len(matched)):
            table.append(self._take())
        self.num_tokens[req.request_id] = req.prompt_len
        return len(matched) * self._size

    def add_token(self, req: Any) -> None:
        if self.num_tokens[req.request_id] % self._size == 0:
            self.tables[req.request_id].append(self._take())
        self.num_tokens[req.request_id] += 1

    def store_context_blocks(self, req: Any) -> None:
        """Store the full blocks of a prompt that is computed."""
        if self.enable_block_reuse and req.request_id in self.tables:
            self._store(req, len(req.tokens) - 1)

    def remove_sequence(self, req: Any, num_computed: int) -> None:
        if self.enable_block_reuse:
            self._store(req, num_computed)
        for block in reversed(self.tables.pop(req.request_id)):
            self._references[block] -= 1
            if not self._references[block]:
                self._free[block] = None
        del self.num_tokens[req.request_id]

    def _store(self, req: Any, num_tokens: int) -> None:
        is_new = False
        for key, block in zip(self._full(req.tokens, num_tokens), self.tables[req.request_id], strict=False):
            is_new |= key not in self._tree
            if is_new:
                self._forget(key)
                self._tree[key] = block
                self._keys[block] = key

    def _match(self, tokens: Sequence[int]) -> list[int]:
        blocks = []
        for key in self._full(tokens, len(tokens) - 1):
            if key not in self._tree:
                break
            blocks.append(self._tree[key])
        return blocks

    def _full(self, tokens: Sequence[int], num_tokens: int) -> list[Key]:
        size = self._size
        return [tuple(tokens[: (i + 1) * size]) for i in range(num_tokens // size)]

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._size)

    def _take(self) -> int:
        block = next(iter(self._free))
        del self._free[block]
        self._references[block] = 1
        if block in self._keys:
            self._forget(self._keys[block])
        return block

    def _forget(self, key: Key) -> None:
        """Take a block and all that follow it out of the tree."""
        for each in [each for each in self._tree if each[: len(key)] == key]:
            del self._keys[self._tree.pop(each)]
