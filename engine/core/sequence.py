"""One request's state in the engine, and the decode clock that keeps its lengths without per-token work."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from enum import Enum

import numpy as np
import xxhash


class RequestRefusedError(ValueError):
    """The request can never run: it is refused when it is added, and no other request is affected."""


class SequenceStatus(Enum):
    WAITING = "waiting"  # not admitted yet, or preempted: holds no blocks
    PREFILLING = "prefilling"  # admitted: part of its known tokens is not in the cache yet
    DECODING = "decoding"  # all known tokens but the last are in the cache; one more per decode step
    FINISHED = "finished"
    ABORTED = "aborted"


class DecodeClock:
    """The number of decode steps so far.

    Every decoding sequence grows by one token per decode step, so a length is kept as an offset to this counter, and
    advancing the counter advances all of them at once.
    """

    __slots__ = ("step",)

    def __init__(self) -> None:
        self.step = 0


_STOPPED = DecodeClock()  # the clock of a sequence that is not decoding; it never advances


class Sequence:
    """State of one request.

    Attributes:
        request_id: unique among the requests the scheduler holds.
        arrival_time: intended arrival, in the clock of the caller.
        num_prompt_tokens: length of the prompt.
        max_tokens: tokens to generate; fewer come out when `end_length` is cut at the model's or the pool's limit.
        end_length: prompt and output tokens at which the sequence ends; set by `Scheduler.add`.
        priority: smaller runs first and is preempted last.
        token_ids: prompt and generated tokens, kept up to date by the executor; None where tokens are only counted.
        block_hashes: identity (>= 0) of the leading full blocks, each standing for the whole prefix up to its end; None
            where the content is unknown and therefore unique to this request.
        block_table: ids of the KV blocks it holds, in order.
        num_registered_blocks: how many of its leading blocks the prefix cache knows by hash.
        num_cached_tokens: prompt tokens found in the prefix cache at its first admission.
        num_recomputed_tokens: tokens computed again because of preemptions.
        num_lost_tokens: tokens that were computed when it was preempted, the most of all times.
        first_scheduled_time, first_token_time, finish_time: None until it happens; the first is when the step that
            begins its prompt is planned.
        last_token_time: when the last token came before a preemption or before it joined the decodes.
    """

    __slots__ = (
        "request_id", "arrival_time", "num_prompt_tokens", "max_tokens", "end_length", "priority", "order", "status",
        "token_ids", "block_hashes", "block_table", "num_registered_blocks", "num_cached_tokens",
        "num_recomputed_tokens", "num_lost_tokens", "num_preemptions", "first_scheduled_time",
        "first_token_time", "finish_time", "last_token_time", "_clock", "_num_tokens", "_num_computed_tokens",
    )  # fmt: skip

    def __init__(
        self,
        request_id: int,
        num_prompt_tokens: int,
        max_tokens: int,
        arrival_time: int = 0,
        *,
        token_ids: list[int] | None = None,
        block_hashes: list[int] | None = None,
        priority: int = 0,
    ) -> None:
        self.request_id = request_id
        self.arrival_time = arrival_time
        self.num_prompt_tokens = num_prompt_tokens
        self.max_tokens = max_tokens
        self.end_length = num_prompt_tokens + max_tokens
        self.priority = priority
        self.order = 0
        self.status = SequenceStatus.WAITING
        self.token_ids = token_ids
        self.block_hashes = block_hashes
        self.block_table: list[int] = []
        self.num_registered_blocks = 0
        self.num_cached_tokens = 0
        self.num_recomputed_tokens = 0
        self.num_lost_tokens = 0
        self.num_preemptions = 0
        self.first_scheduled_time: int | None = None
        self.first_token_time: int | None = None
        self.finish_time: int | None = None
        self.last_token_time: int | None = None
        self._clock = _STOPPED
        self._num_tokens = num_prompt_tokens
        self._num_computed_tokens = 0

    @property
    def has_content(self) -> bool:
        """Whether other requests can share its blocks."""
        return self.token_ids is not None or self.block_hashes is not None

    @property
    def num_tokens(self) -> int:
        """Known tokens: the prompt and what was generated."""
        return self._num_tokens + self._clock.step

    @property
    def num_computed_tokens(self) -> int:
        """Tokens whose KV is in the cache."""
        return self._num_computed_tokens + self._clock.step

    @property
    def num_output_tokens(self) -> int:
        return self._num_tokens + self._clock.step - self.num_prompt_tokens

    def start_decoding(self, clock: DecodeClock) -> None:
        """Tie the lengths to `clock`: from now on each decode step adds one known and one computed token."""
        self._num_tokens -= clock.step
        self._num_computed_tokens = self._num_tokens - 1
        self._clock = clock
        self.status = SequenceStatus.DECODING

    def leave(self, status: SequenceStatus) -> None:
        """Fix the lengths where the clock stands and take on `status`."""
        step = self._clock.step
        self._num_tokens += step
        self._num_computed_tokens += step
        self._clock = _STOPPED
        self.status = status

    def set_computed(self, num_computed_tokens: int) -> None:
        self._num_computed_tokens = num_computed_tokens

    def add_tokens(self, count: int) -> None:
        """Count `count` more known tokens (negative: discard what was generated past a stop)."""
        self._num_tokens += count

    def hash_blocks(self, block_size: int, num_blocks: int) -> None:
        """Extend `block_hashes` from `token_ids` to the first `num_blocks` full blocks; computed ones are kept."""
        assert self.token_ids is not None
        if self.block_hashes is None:
            self.block_hashes = []
        extend_hashes(self.block_hashes, self.token_ids, block_size, num_blocks)


def extend_hashes(hashes: list[int], token_ids: SequenceOf[int], block_size: int, num_blocks: int) -> None:
    """Append to `hashes` those of the blocks that follow, up to `num_blocks` full blocks of `token_ids`.

    The hash of a block is xxh64 over the hash of the block before it (8 bytes, little endian, 0 for the first) and the
    block's tokens as little-endian int32, so that it stands for the whole prefix.
    """
    for i in range(len(hashes), num_blocks):
        hashes.append(chain_hash(hashes[-1] if hashes else 0, token_ids[i * block_size : (i + 1) * block_size]))


def token_bytes(token_ids: SequenceOf[int]) -> bytes:
    """Tokens as little-endian int32: what is hashed, and what is compared on a cache hit."""
    return np.asarray(token_ids, dtype="<i4").tobytes()


def chain_hash(parent_hash: int, token_ids: SequenceOf[int]) -> int:
    """Hash of a block of tokens that follows the prefix with hash `parent_hash` (0: none)."""
    return xxhash.xxh64_intdigest(parent_hash.to_bytes(8, "little") + token_bytes(token_ids))
