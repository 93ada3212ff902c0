"""KV blocks of models whose sequences keep a state of fixed size, in blocks of the same pool, as vLLM has it."""

from __future__ import annotations

from engine.core.kv.block_manager import BlockManager
from engine.core.kv.eviction import Eviction
from engine.core.kv.prefix_match import PrefixMatch
from engine.core.kv.tiers.tier import Tier, Transfer
from engine.core.sequence import Sequence


class StatefulManager(BlockManager):
    """Each admitted sequence holds `state_blocks` blocks beside its block table, those of its forks among them until
    they are made. Nothing finds states again, so that prefixes are not cached.

    Args:
        eviction, host: as of `BlockManager`.

    Raises:
        ValueError: as of `BlockManager`.
    """

    def __init__(
        self, num_blocks: int, block_size: int, state_blocks: int, *, eviction: Eviction, host: Tier | None
    ) -> None:
        super().__init__(num_blocks, block_size, enable_prefix_caching=False, eviction=eviction, host=host)
        self.longest_sequence = max(0, num_blocks - state_blocks) * block_size
        self.state_blocks = state_blocks
        self._states: dict[Sequence, list[int]] = {}

    def blocks_needed(self, sequence: Sequence, match: PrefixMatch, num_tokens: int) -> int:
        return super().blocks_needed(sequence, match, num_tokens) + self._missing(sequence)

    def admit(self, sequence: Sequence, match: PrefixMatch, num_tokens: int) -> list[Transfer]:
        if missing := self._missing(sequence):
            self._states[sequence] = self.take(missing)
        return super().admit(sequence, match, num_tokens)

    def share(self, fork: Sequence) -> None:
        super().share(fork)
        states = self._states[fork.request.sequences[0]]
        self._states[fork] = [states.pop() for _ in range(self.state_blocks)]

    def release(self, sequence: Sequence) -> None:
        super().release(sequence)
        self._drop_state(sequence)

    def release_tail(self, sequence: Sequence, num_kept: int) -> None:
        super().release_tail(sequence, num_kept)
        if not num_kept:
            self._drop_state(sequence)

    def note_row(self, sequence: Sequence, row: Sequence) -> None:
        """A row of padding has taken over the state of `sequence`."""
        self._states[row] = self._states.pop(sequence)

    def check_integrity(self, sequences: list[Sequence]) -> None:
        """Prove the invariants, states being parts of block tables; arguments and errors as those of `check_blocks`."""
        tables = {sequence: sequence.block_table for sequence in sequences}
        assert self._states.keys() <= tables.keys(), "a state is lost"
        for sequence, table in tables.items():
            state = self._states.get(sequence, [])
            size = self.state_blocks * (1 + sequence.num_forks) if table or state else 0
            assert len(state) == size, "a state of another size"
            sequence.block_table = table + state
        super().check_integrity(sequences)
        for sequence, table in tables.items():
            sequence.block_table = table

    def _missing(self, sequence: Sequence) -> int:
        return 0 if sequence in self._states else self.state_blocks * (1 + sequence.num_forks)

    def _drop_state(self, sequence: Sequence) -> None:
        self.pool.release(self._states.pop(sequence, []), None, 0)
