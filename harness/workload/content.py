"""What the requests of a trace contain, as far as the prefix cache can tell: an identity for each full KV block.

Two requests have equal identities for their first k blocks exactly when the trace says that they share that prefix.
Requests that the trace says nothing about have no identities, so nobody shares with them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.core.block_hashes import BlockHashes, SpannedHashes
from engine.core.hashing import extend_hashes
from engine.core.sequence import Request
from harness.workload.lines import Lines, continuing_rows
from harness.workload.trace import Trace, deadlines_ns, tenants, whole_numbers
from simulator.quantities import MAX_TOKENS

_OWN = 1 << 62  # where identities of blocks begin that no other request has


def request_factory(
    trace: Trace, block_size: int, *, names_outputs: bool = False, max_model_len: int = 2 * MAX_TOKENS
) -> Callable[[int, int], Request]:
    """Return a function that makes the `Request` of a row of the trace, given the row and its arrival in ns.

    Blocks beyond `max_model_len` tokens get no identity, nor do those of a prompt that is so long that it is refused.

    With `names_outputs`, blocks that the trace says nothing about, generated ones above all, have identities of their
    own, which nobody shares.
    """
    table = trace.rows
    prompts = whole_numbers(table["num_prompt_tokens"].to_numpy())
    outputs = whole_numbers(table["num_output_tokens"].to_numpy())
    columns = _request_columns(trace)
    deadlines = deadlines_ns(trace)
    identities = block_identities(trace, block_size, max_model_len)
    num_blocks = _num_blocks(trace, block_size, max_model_len) if names_outputs else []

    def contents(row: int) -> BlockHashes | None:
        if prompts[row] >= max_model_len:
            return None
        known = identities(row) if identities else BlockHashes([])
        if not names_outputs:
            return known
        own = _OWN + (row << 32)
        return BlockHashes(known.all() + list(range(own + known.count, own + num_blocks[row])))

    has_contents = identities is not None or names_outputs
    if not (columns or deadlines):
        if not has_contents:
            return lambda row, arrival_ns: Request(row, prompts[row], outputs[row], arrival_ns)
        return lambda row, arrival_ns: Request(row, prompts[row], outputs[row], arrival_ns, block_hashes=contents(row))

    def make(row: int, arrival_ns: int) -> Request:
        options: dict[str, Any] = {name: values[row] for name, values in columns.items()}
        if has_contents:
            options["block_hashes"] = contents(row)
        if deadlines:
            options["deadline"] = arrival_ns + deadlines[row]
        return Request(row, prompts[row], outputs[row], arrival_ns, **options)

    return make


def _request_columns(trace: Trace) -> dict[str, list[Any]]:
    """What the trace says of each of its requests beside lengths, times and contents, by the name in `Request`."""
    columns: dict[str, list[Any]] = {}
    if "priority" in trace.rows:
        columns["priority"] = trace.rows["priority"].tolist()
    if (tenant_of := tenants(trace)) is not None:
        columns["tenant"] = tenant_of
    if "session_id" in trace.rows:
        columns["session"] = trace.rows["session_id"].tolist()
    if (trace.num_sequences > 1).any():
        columns["num_sequences"] = trace.num_sequences.tolist()
    return columns


def block_identities(
    trace: Trace, block_size: int, max_model_len: int = 2 * MAX_TOKENS
) -> Callable[[int], BlockHashes] | None:
    """Return a function from a row to the identities of its full blocks of `block_size` tokens; None without contents.

    From token ids: the hashes of the real engine. From hash ids: the id that a block's last token falls under, and
    where in it the block ends; hash ids are positional, so equal pairs mean equal prefixes. From sessions, whose
    prompts repeat all that was said before: the line of the session and the block's number, outputs included.
    """
    table = trace.rows
    if "token_ids" in table:
        tokens = table["token_ids"].tolist()
        return lambda row: BlockHashes(_hash_tokens(tokens[row], block_size))
    prompts = table["num_prompt_tokens"].to_numpy()
    if "hash_ids" in table:
        hash_ids, span = dense_hash_ids(trace), trace.hash_block_size
        assert span is not None
        lengths: list[int] = prompts.tolist()
        # an answer that a later prompt begins with is in the hash ids of that prompt
        teller = continuing_rows(trace)
        totals = (table["num_prompt_tokens"] + table["num_output_tokens"]).tolist() if teller else []
        for row in teller:
            lengths[row] = min(totals[row], max_model_len)
        return lambda row: _from_hash_ids(hash_ids[teller.get(row, row)], span, lengths[row], block_size)
    if "session_id" in table:
        lines, num_blocks = Lines(trace, block_size), _num_blocks(trace, block_size, max_model_len)
        return lambda row: BlockHashes(lines.identities(row, num_blocks[row]))
    return None


def _num_blocks(trace: Trace, block_size: int, max_model_len: int) -> list[int]:
    """Full blocks of each row's prompt and output together, within `max_model_len` tokens."""
    totals = trace.rows["num_prompt_tokens"].to_numpy() + trace.rows["num_output_tokens"].to_numpy()
    blocks: list[int] = (np.minimum(totals, max_model_len) // block_size).tolist()
    return blocks


def dense_hash_ids(trace: Trace) -> list[NDArray[np.int64]]:
    """The trace's hash ids, renumbered so that equal numbers mean equal prefixes: only equality matters, and real
    hashes may fill all 64 bits. Ids that name the content of a block alone follow several others; of these a number
    stands for all ids up to its own."""
    rows = trace.rows["hash_ids"].tolist()
    _, dense = np.unique(np.concatenate(rows), return_inverse=True)
    ends = np.cumsum([len(ids) for ids in rows])
    before: NDArray[np.int64] = np.concatenate(([-1], dense[:-1]))
    before[ends[:-1][ends[:-1] < len(dense)]] = -1
    only_before = np.empty_like(before)
    only_before[dense] = before  # the last of those that an id follows
    if not np.array_equal(only_before[dense], before):
        dense = _prefix_numbers(dense.tolist(), before.tolist())
    return [dense[start:end] for start, end in pairwise([0, *ends.tolist()])]


def _prefix_numbers(ids: list[int], before: list[int]) -> NDArray[np.int64]:
    """A number for each prefix; `before` is -1 where a prompt begins."""
    numbers: dict[tuple[int, int], int] = {}
    found, parent = [], -1
    for block_id, previous in zip(ids, before, strict=True):
        parent = numbers.setdefault((-1 if previous < 0 else parent, block_id), len(numbers))
        found.append(parent)
    return np.array(found, np.int64)


def _hash_tokens(tokens: NDArray[np.int32], block_size: int) -> list[int]:
    hashes: list[int] = []
    extend_hashes(hashes, tokens.tolist(), block_size, len(tokens) // block_size)
    return hashes


def _from_hash_ids(hash_ids: NDArray[np.int64], span: int, num_tokens: int, block_size: int) -> BlockHashes:
    num_blocks = num_tokens // block_size
    if span % block_size == 0:  # each hash id covers whole blocks: numbers that follow one another are found faster
        per_id = span // block_size
        starts: list[int] = (hash_ids * per_id).tolist()
        return SpannedHashes(starts, per_id if len(starts) > 1 else max(1, num_blocks), num_blocks)
    if len(hash_ids) == 1:
        start = int(hash_ids[0]) * span
        return BlockHashes(list(range(start + block_size - 1, start + num_tokens, block_size)))
    last_tokens = np.arange(block_size - 1, num_tokens, block_size)
    blocks: list[int] = (hash_ids[last_tokens // span] * span + last_tokens % span).tolist()
    return BlockHashes(blocks)
