"""The radix tree of cached prefixes and the blocks that it holds; SGLang itself is compared with in experiments."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.core.hashing import extend_hashes
from engine.core.kv.trees.radix_tree import Node, RadixTree
from engine.core.scheduler import Scheduler
from engine.core.scheduler_making import make_scheduler
from engine.core.sequence import Request
from tests.engine.core.builders import run
from tests.policies import SGLANG


def hashes_of(tokens: list[int]) -> list[int]:
    hashes: list[int] = []
    extend_hashes(hashes, tokens, 1, len(tokens))
    return hashes


def make(num_blocks: int) -> Scheduler:
    return make_scheduler(SGLANG, num_blocks=num_blocks, block_size=1, max_num_seqs=4, max_num_batched_tokens=64)


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=6)


@given(st.lists(st.tuples(st.sampled_from(["insert", "match", "evict", "unlock"]), TOKENS), max_size=40))
def test_a_tree_finds_what_was_inserted_until_it_is_evicted(operations: list[tuple[str, list[int]]]) -> None:
    tree, held, next_block = RadixTree(), list[Node](), 0
    cached: dict[tuple[int, ...], int] = {}  # prefixes with their last blocks
    for name, tokens in operations:
        hashes, known = hashes_of(tokens), 0
        while known < len(tokens) and tuple(tokens[: known + 1]) in cached:
            known += 1
        if name == "insert":
            assert tree.peek(hashes) == known
            assert tree.insert(hashes, list(range(next_block, next_block + len(tokens)))) == known
            cached |= {tuple(tokens[: i + 1]): next_block + i for i in range(known, len(tokens))}
            next_block += len(tokens)
        elif name == "match":
            end, blocks = tree.match(hashes, len(hashes))
            assert blocks == [cached[tuple(tokens[: i + 1])] for i in range(known)]
            tree.lock(end)
            held.append(end)
        elif name == "unlock" and held:
            tree.unlock(held.pop())
        elif name == "evict" and tree.num_evictable:
            evicted = {*tree.evict()}
            cached = {prefix: block for prefix, block in cached.items() if block not in evicted}
        tree.check_integrity(held)
        assert sorted(cached.values()) == sorted(block for node in tree.nodes() for block in node.blocks)


def test_a_leaf_goes_as_a_whole_and_the_least_recently_accessed_first() -> None:
    tree = RadixTree()
    tree.insert(hashes_of([1, 2, 3]), [0, 1, 2])
    tree.insert(hashes_of([1, 2, 4, 5]), [0, 1, 3, 4])
    tree.match(hashes_of([1, 2, 3]), 3)
    assert [tree.evict() for _ in range(3)] == [[3, 4], [2], [0, 1]]


def test_equal_prompts_of_one_step_hold_the_same_blocks_when_it_has_run() -> None:
    scheduler = make(40)
    for number in range(2):
        scheduler.add(Request(number, 8, 3, token_ids=list(range(8))))
    plans = run(scheduler)
    assert [plan.num_used_blocks for plan in plans] == [16, 10, 12]  # nothing is found before; then one prompt is kept
    assert scheduler.blocks.cached_prefix(hashes_of(list(range(8)))) == (8, 0)


def test_what_is_generated_is_cached_at_the_end_and_goes_before_its_prompt() -> None:
    scheduler = make(20)
    scheduler.add(Request(0, 4, 6, token_ids=[1, 2, 3, 4]))
    list(run(scheduler))
    hashes = hashes_of([1, 2, 3, 4, 7, 7, 7, 7, 7])
    assert scheduler.blocks.cached_prefix(hashes) == (9, 0)
    scheduler.add(Request(1, 14, 2, token_ids=list(range(20, 34))))
    list(run(scheduler))
    assert scheduler.blocks.cached_prefix(hashes) == (4, 0)
