"""A request, as a client asked for it, and its sequences, each a stream of tokens with KV of its own.

    Request ──1..n──▶ Sequence ──▶ block_table ──▶ blocks of the pool

Most requests have one sequence. A request for `num_sequences` samples computes its prompt once, in its first sequence,
from which the others are forked when the first token is sampled.
"""

from __future__ import annotations

from collections import abc
from enum import Enum
from typing import Final

from engine.core.block_hashes import BlockHashes
from engine.core.clock import Clock, Lengths
from engine.core.hashing import extend_hashes

NO_HITS: Final[abc.Mapping[str, int]] = {}


class RequestRefusedError(ValueError):
    """The request can never run: it is refused when it is added, and no other request is affected."""


class SequenceStatus(Enum):
    WAITING = "waiting"  # not admitted yet, or preempted: holds blocks of the device only if it kept a prefix
    PARKED = "parked"  # admitted and holding blocks, but waiting for something that is not a step, such as a swap-in
    PREFILLING = "prefilling"  # admitted: part of its known tokens is not in the cache yet
    DECODING = "decoding"  # all known tokens but the last are in the cache; it computes the next in every decode step
    PADDING = "padding"  # nobody's: a row that a batch of fixed shape computes in place of a sequence that has ended
    FINISHED = "finished"
    ABORTED = "aborted"


# Ten times as fast as a member's attribute.
WAITING: Final = SequenceStatus.WAITING
PREFILLING: Final = SequenceStatus.PREFILLING
DECODING: Final = SequenceStatus.DECODING
PADDING: Final = SequenceStatus.PADDING
FINISHED: Final = SequenceStatus.FINISHED
ABORTED: Final = SequenceStatus.ABORTED


class Request:
    """What a client asked for, and when it got it. Times are in the clock of the caller.

    Attributes:
        request_id: unique among the requests that the scheduler holds.
        arrival_time: intended arrival.
        num_prompt_tokens: length of the prompt.
        max_tokens: tokens to generate per sequence; fewer come out when the model or the pool allows fewer.
        priority: smaller is more urgent.
        tenant: who is served, for policies that share fairly.
        session: the conversation that it is a turn of, for routers that keep these together; None where it is none.
        deadline: when it should be done, for policies that go by deadlines; None where there is none.
        num_sequences: samples of the same prompt.
        reads_prefix_cache: whether it may skip what the prefix cache holds; what it computes is cached either way.
        decodes_elsewhere: it computes the prompt for another server: its blocks are held after its end, until
            `Scheduler.ready` says that they were copied.
        prefilled_elsewhere: another server computes the prompt. It is admitted with blocks for all of it, to wait until
            their content has come, and computes the last token of the prompt itself. The KV comes once: after a
            preemption this is False.
        order: number of requests that were added before it; set by `Scheduler.add`.
        sequences: its sequences so far; one until the prompt is computed.
        num_unfinished: sequences, forked or not, that have not ended.
        first_scheduled_time, first_token_time, finish_time: None until it happens; the first is when the step that
            begins the prompt is planned, the last when all sequences have ended.
        loading_time: how long it waited for KV that vLLM's connector loaded from the host, in sum.
    """

    __slots__ = (
        "request_id", "arrival_time", "num_prompt_tokens", "max_tokens", "priority", "tenant", "session", "deadline",
        "num_sequences", "reads_prefix_cache", "decodes_elsewhere", "prefilled_elsewhere", "order", "sequences",
        "num_unfinished", "first_scheduled_time", "first_token_time", "finish_time", "loading_time",
    )  # fmt: skip

    def __init__(
        self,
        request_id: int,
        num_prompt_tokens: int,
        max_tokens: int,
        arrival_time: int = 0,
        *,
        token_ids: list[int] | None = None,
        block_hashes: list[int] | BlockHashes | None = None,
        priority: int = 0,
        tenant: int = 0,
        session: int | None = None,
        deadline: int | None = None,
        num_sequences: int = 1,
        reads_prefix_cache: bool = True,
        decodes_elsewhere: bool = False,
        prefilled_elsewhere: bool = False,
    ) -> None:
        self.request_id = request_id
        self.arrival_time = arrival_time
        self.num_prompt_tokens = num_prompt_tokens
        self.max_tokens = max_tokens
        self.priority = priority
        self.tenant = tenant
        self.session = session
        self.deadline = deadline
        self.num_sequences = num_sequences
        self.reads_prefix_cache = reads_prefix_cache
        self.decodes_elsewhere = decodes_elsewhere
        self.prefilled_elsewhere = prefilled_elsewhere
        self.order = 0
        self.num_unfinished = num_sequences
        self.first_scheduled_time: int | None = None
        self.first_token_time: int | None = None
        self.finish_time: int | None = None
        self.loading_time = 0
        self.sequences = [Sequence(self, token_ids, block_hashes)]

    def forget_sequences(self) -> None:
        """Let go of the sequences, which refer back to the request: a run without a garbage collector calls this when
        nobody will ask a request that has ended for its counts."""
        self.sequences.clear()

    @property
    def num_output_tokens(self) -> int:
        return sum(sequence.num_output_tokens for sequence in self.sequences)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens found in the prefix cache at the first admission."""
        return self.sequences[0].num_cached_tokens

    @property
    def num_recomputed_tokens(self) -> int:
        return sum(sequence.num_recomputed_tokens for sequence in self.sequences)

    @property
    def num_preemptions(self) -> int:
        return sum(sequence.num_preemptions for sequence in self.sequences)


class Sequence(Lengths):
    """One stream of tokens with KV, which knows its lengths.

    Attributes:
        request: what it belongs to.
        end_length: prompt and output tokens at which it ends; set by `Scheduler.add`.
        token_ids: prompt and generated tokens, kept up to date by the executor; None where tokens are only counted.
        hashes: identities of the leading full blocks, each standing for the whole prefix up to its end; None where the
            content is unknown and therefore unique to this sequence.
        block_table: ids of the KV blocks it holds on the device, in order.
        host_blocks: ids of the blocks of a lower tier that hold its KV while it is swapped out.
        num_registered_blocks: how many of its leading blocks the prefix index knows by hash.
        num_forks: sequences that will be forked from it when its prompt is computed.
        num_cached_tokens: prompt tokens found in the prefix cache at its first admission.
        cached_by_tier: how many of these came from which tier behind the device.
        num_recomputed_tokens: tokens computed again because of preemptions.
        num_lost_tokens: tokens that were computed when it was preempted, the most of all times.
        num_preemptions: how often it gave way.
        num_swaps: how often its KV moved to the host tier then.
        num_partial_preemptions: how often it kept blocks of the device then, which others may have taken later.
        last_token_time: when its last token came before a preemption or before it joined the decodes.
        admission: how many admissions its lane had before its own.
    """

    __slots__ = (
        "request", "end_length", "status", "token_ids", "hashes", "block_table", "host_blocks",
        "num_registered_blocks", "num_forks", "num_cached_tokens", "cached_by_tier", "num_recomputed_tokens",
        "num_lost_tokens", "num_preemptions", "num_swaps", "num_partial_preemptions", "last_token_time", "admission",
    )  # fmt: skip

    def __init__(self, request: Request, token_ids: list[int] | None, hashes: list[int] | BlockHashes | None) -> None:
        super().__init__(request.num_prompt_tokens)
        self.request = request
        self.end_length = request.num_prompt_tokens + request.max_tokens
        self.status = WAITING
        self.token_ids = token_ids
        self.hashes = BlockHashes(hashes) if isinstance(hashes, list) else hashes
        self.block_table: list[int] = []
        self.host_blocks: list[int] | None = None
        self.num_registered_blocks = 0
        self.num_forks = request.num_sequences - 1
        self.num_cached_tokens = 0
        self.cached_by_tier: abc.Mapping[str, int] = NO_HITS
        self.num_recomputed_tokens = 0
        self.num_lost_tokens = 0
        self.num_preemptions = 0
        self.num_swaps = 0
        self.num_partial_preemptions = 0
        self.last_token_time: int | None = None
        self.admission = 0

    @property
    def request_id(self) -> int:
        return self.request.request_id

    @property
    def has_content(self) -> bool:
        """Whether other sequences can share its blocks by content."""
        return self.token_ids is not None or self.hashes is not None

    @property
    def block_hashes(self) -> list[int] | None:
        """All of `hashes`, made now if they were not."""
        return None if self.hashes is None else self.hashes.all()

    @property
    def num_output_tokens(self) -> int:
        return self._num_tokens + self._clock.count - self.request.num_prompt_tokens

    @property
    def is_prefilled(self) -> bool:
        """Whether only the last known token, a generated one, is not in the cache, so that it can go on decoding."""
        return self._num_computed_tokens == self._num_tokens - 1 and self.num_output_tokens > 0

    @property
    def has_ended(self) -> bool:
        return self.status is FINISHED or self.status is ABORTED

    def start_decoding(self, clock: Clock) -> None:
        """Let the lengths grow with `clock` from now on."""
        self.tie(clock)
        if self.status is not PADDING:
            self.status = DECODING

    def leave(self, status: SequenceStatus) -> None:
        """Fix the lengths where the clock stands and take on `status`."""
        self.untie()
        self.status = status

    def hand_over_blocks(self) -> Sequence:
        """Let a sequence that is none of the request's hold its blocks from now on."""
        holder = Sequence(self.request, self.token_ids, self.hashes)
        holder.block_table, self.block_table = self.block_table, []
        holder.num_registered_blocks, self.num_registered_blocks = self.num_registered_blocks, 0
        return holder

    def hash_blocks(self, block_size: int, num_blocks: int) -> None:
        """Extend `hashes` from `token_ids` to the first `num_blocks` full blocks; computed ones are kept."""
        assert self.token_ids is not None
        if self.hashes is None:
            self.hashes = BlockHashes([])
        extend_hashes(self.hashes.all(), self.token_ids, block_size, num_blocks)
