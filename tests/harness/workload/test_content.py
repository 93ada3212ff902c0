"""Block identities: equal exactly where the contents are, at any block size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.scheduler_making import make_scheduler
from engine.core.scheduler_options import SchedulerOptions
from engine.core.sequence import Request
from harness.workload.content import block_identities, request_factory
from harness.workload.token_ids import PromptSource
from harness.workload.trace import Trace, trace_table
from simulator.quantities import MAX_TOKENS
from simulator.table import Table, objects


def shared_blocks(trace: Trace, block_size: int) -> int:
    """Leading full blocks that the first two rows share."""
    identities = block_identities(trace, block_size)
    assert identities is not None
    one, two = identities(0).all(), identities(1).all()
    return next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def hashes(request: Request) -> list[int] | None:
    """Identities of the request's full blocks."""
    return request.sequences[0].block_hashes


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 6), st.integers(1, 33))
def test_hash_ids_share_what_lies_under_equal_ids(one: int, two: int, num_equal: int, block_size: int) -> None:
    span = 8
    ids = [np.arange(-(-n // span)) for n in (one, two)]
    ids[1][num_equal:] += 100
    table = trace_table({"num_prompt_tokens": [one, two], "num_output_tokens": [1, 1], "hash_ids": ids})
    equal_tokens = min(num_equal * span, one, two)
    assert shared_blocks(Trace("t", table, "made", span), block_size) == equal_tokens // block_size


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=6))
def test_hash_ids_of_the_content_of_a_block_alone_share_prefixes_only(ids: list[list[int]]) -> None:
    lengths = [len(each) for each in ids]
    columns = {"num_prompt_tokens": lengths, "num_output_tokens": [1] * len(ids), "hash_ids": list(map(np.array, ids))}
    identities = block_identities(Trace("t", trace_table(columns), "made", 1), 1)
    assert identities is not None
    prefixes: dict[int, list[int]] = {}
    for row, each in enumerate(ids):
        blocks = identities(row).all()
        assert len(blocks) == len(each)
        for end, block in enumerate(blocks, 1):
            assert prefixes.setdefault(block, each[:end]) == each[:end]
    assert len(prefixes) == len({tuple(each[:end]) for each in ids for end in range(1, len(each) + 1)})


def test_hash_ids_may_be_any_64_bit_number() -> None:
    ids = [np.array([2**62 + i], dtype=np.int64) for i in range(0, 9, 2)] + [np.array([-(2**63)], dtype=np.int64)]
    table = trace_table({"num_prompt_tokens": [16] * 6, "num_output_tokens": [1] * 6, "hash_ids": ids})
    identities = block_identities(Trace("t", table, "made", 16), 16)
    assert identities is not None
    blocks = [identities(row).at(0) for row in range(6)]
    assert len(set(blocks)) == 6 and min(blocks) >= 0


@given(st.integers(1, 30), st.integers(0, 30), st.integers(1, 12))
def test_token_ids_share_equal_prefixes_only(length: int, num_equal: int, block_size: int) -> None:
    tokens = [np.arange(length, dtype=np.int32), np.arange(length, dtype=np.int32)]
    tokens[1][num_equal : num_equal + 1] += 1  # one token differs, the rest is equal again
    table = trace_table({"num_prompt_tokens": [length] * 2, "num_output_tokens": [1, 1], "token_ids": tokens})
    assert shared_blocks(Trace("t", table, "made"), block_size) == min(num_equal, length) // block_size


def test_token_ids_hash_as_the_engine_hashes_them() -> None:
    tokens = np.arange(10, dtype=np.int32)
    table = trace_table({"num_prompt_tokens": [10], "num_output_tokens": [1], "token_ids": [tokens]})
    identities = block_identities(Trace("t", table, "made"), 4)
    (engine_side,) = Request(0, 10, 1, token_ids=tokens.tolist()).sequences
    engine_side.hash_blocks(4, 2)
    assert identities is not None and identities(0).all() == engine_side.block_hashes


def test_a_turn_finds_what_its_session_said_before_and_nobody_else_does() -> None:
    columns = {"num_prompt_tokens": [10, 30, 30], "num_output_tokens": [9, 1, 1], "session_id": [0, 0, 1]}
    trace = Trace("t", trace_table(columns), "made")
    make = request_factory(trace, 4)
    options = SchedulerOptions(watermark=0.0)
    scheduler = make_scheduler(options, num_blocks=99, block_size=4, max_num_seqs=4, max_num_batched_tokens=99)
    cached = []
    for row in range(3):
        request = make(row, 0)
        scheduler.add(request)
        while plan := scheduler.schedule(0):
            scheduler.commit(plan, 1)
        cached.append(request.num_cached_tokens)
    assert cached == [0, 16, 0]  # 18 of the first turn's 19 tokens were computed: four full blocks


def test_requests_without_contents_share_nothing() -> None:
    table = trace_table({"num_prompt_tokens": [8], "num_output_tokens": [1]})
    assert block_identities(Trace("t", table, "made"), 4) is None
    assert hashes(request_factory(Trace("t", table, "made"), 4)(0, 5)) is None


@pytest.mark.parametrize("columns", [{"tenant": [9]}, {"session_id": [9]}, {"tenant": [9], "session_id": [1]}])
def test_priority_tenant_and_deadline_reach_the_request_in_both_worlds(columns: dict[str, list[int]]) -> None:
    """Where the trace names no tenants, sessions are."""
    classes = {"priority": [3], "deadline": [1e-6], **columns}
    trace = Trace("t", trace_table({"num_prompt_tokens": [8], "num_output_tokens": [1], **classes}), "made")
    for request in (request_factory(trace, 4)(0, 5), PromptSource(trace, 100, seed=0).make(0, 5)):
        assert (request.priority, request.tenant, request.deadline) == (3, 9, 1005)


def test_generated_blocks_can_have_identities_of_their_own() -> None:
    lengths = {"num_prompt_tokens": [9, 9], "num_output_tokens": [8, 3]}
    table = Table({**lengths, "hash_ids": objects([[5, 6], [5, 6]])})
    trace = Trace("t", table, "made", hash_block_size=8)
    plain, named = request_factory(trace, 4), request_factory(trace, 4, names_outputs=True)
    one, other = hashes(named(0, 0)), hashes(named(1, 0))
    assert one is not None and other is not None
    assert one[:2] == other[:2] == hashes(plain(0, 0))
    assert (len(one), len(other)) == (17 // 4, 12 // 4) and len({*one, *other}) == 2 + 2 + 1
    bare = Trace("t", table.without("hash_ids"), "made")
    first, second = (hashes(request_factory(bare, 4, names_outputs=True)(row, 0)) for row in (0, 1))
    assert first is not None and second is not None and not {*first} & {*second} and len(first) == 4


def test_contents_of_absurdly_long_requests_are_not_made_up() -> None:
    """A list of all their blocks would take gigabytes."""
    n = MAX_TOKENS
    table = trace_table({"num_prompt_tokens": [n, 8], "num_output_tokens": [1, n], "session_id": [1, 2]})
    for names_outputs in (False, True):
        make = request_factory(Trace("t", table, "made"), 4, names_outputs=names_outputs, max_model_len=16)
        assert hashes(make(0, 5)) is None
        assert len(hashes(make(1, 5)) or []) == 4
    hashed = table.without("session_id").without("turn").assign(hash_ids=objects([np.array([1])] * 2))
    make = request_factory(Trace("t", hashed, "made", hash_block_size=n), 1 << 24)
    assert len(hashes(make(0, 5)) or []) == n // (1 << 24)
    make = request_factory(Trace("t", hashed, "made", hash_block_size=n - 1), 4, max_model_len=16)
    assert hashes(make(0, 5)) is None and len(hashes(make(1, 5)) or []) == 2
