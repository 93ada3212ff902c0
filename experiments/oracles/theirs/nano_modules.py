"""The scheduler of nano-vllm, out of a clone of its repository and without its model code."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from experiments.oracles.stubs import Corrections, SelectiveFinder, selective_imports

_STOOD_IN_FOR = ("nanovllm", "transformers")
_SCHEDULER, _BLOCKS, _SEQUENCE = (f"nanovllm.engine.{name}" for name in ("scheduler", "block_manager", "sequence"))


class BlocksByHash(dict[int, list[int]]):
    """The blocks with each hash, oldest first, where nano-vllm keeps only the newest."""

    def get(self, block_hash: int, default: Any = None) -> Any:
        blocks = super().get(block_hash)
        return blocks[0] if blocks else default

    def __getitem__(self, block_hash: int) -> Any:
        return super().__getitem__(block_hash)[0]

    def __setitem__(self, block_hash: int, block: Any) -> None:
        blocks = self.setdefault(block_hash, [])
        if block not in blocks:
            blocks.append(block)

    def forget(self, block_hash: int, block: int) -> None:
        blocks = super().__getitem__(block_hash)
        blocks.remove(block)
        if not blocks:
            del self[block_hash]


_VALUES: dict[str, dict[str, Any]] = {_BLOCKS: {"BlocksByHash": BlocksByHash}}

_CORRECTIONS = Corrections(
    {
        _SCHEDULER: [
            # The seats bound the running sequences, not only those of a step.
            (
                "while self.waiting and len(scheduled_seqs) < self.max_num_seqs:",
                "while self.waiting and len(self.running) < self.max_num_seqs:",
            ),
            # Full blocks can be found from the planning of the step on that computes them, not from its end on.
            (
                "            seq.num_scheduled_tokens = min(num_tokens, remaining)\n",
                "            seq.num_scheduled_tokens = min(num_tokens, remaining)\n"
                "            self.block_manager.hash_blocks(seq)\n",
            ),
            (
                "                self.block_manager.may_append(seq)\n",
                "                self.block_manager.may_append(seq)\n"
                "                self.block_manager.hash_blocks(seq)\n",
            ),
            ("            self.block_manager.hash_blocks(seq)\n            seq.num_cached_tokens +=",
             "            seq.num_cached_tokens +="),
        ],
        _BLOCKS: [
            # Blocks of equal content are all remembered, so that one is found when another is evicted.
            ("self.hash_to_block_id: dict[int, int] = dict()", "self.hash_to_block_id = BlocksByHash()"),
            (
                "if block.hash != -1 and self.hash_to_block_id.get(block.hash) == block_id:\n"
                "            del self.hash_to_block_id[block.hash]",
                "if block.hash != -1:\n"
                "            self.hash_to_block_id.forget(block.hash, block_id)",
            ),
        ],
    }
)  # fmt: skip


def load(folder: Path, *, corrected: bool) -> SimpleNamespace:
    """`Scheduler` and `Sequence` of nano-vllm.

    Args:
        folder: the clone; it holds the directory `nanovllm`.
        corrected: correct the three faults named above.
    """
    corrections = _CORRECTIONS if corrected else Corrections()
    finder = SelectiveFinder(folder, _STOOD_IN_FOR, [_SCHEDULER, _BLOCKS, _SEQUENCE], _VALUES, corrections)
    with selective_imports(finder, _STOOD_IN_FOR):
        scheduler, sequence = importlib.import_module(_SCHEDULER), importlib.import_module(_SEQUENCE)
        return SimpleNamespace(Scheduler=scheduler.Scheduler, Sequence=sequence.Sequence)
