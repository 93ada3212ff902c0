"""Both calendars of decodes against plain stepping: the same steps, blocks and sums, alone and in runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.core.decodes.interface import Decodes
from engine.core.decodes.ragged import RaggedDecodes
from engine.core.decodes.step_sums import _FIRST_ROOM
from engine.core.decodes.uniform import UniformDecodes
from engine.core.kv.block_manager import BlockManager
from engine.core.sequence import Sequence, SequenceStatus
from engine.core.work import StepWork
from tests.engine.core.builders import bare_sequence


@dataclass(frozen=True)
class Member:
    """A sequence that decodes from step `joins` on, until it ends or step `leaves` comes."""

    joins: int
    leaves: int
    num_prompt_tokens: int
    gains: tuple[int, ...]  # tokens of each of its decode steps

    @property
    def max_tokens(self) -> int:
        return 1 + sum(self.gains)


@dataclass(frozen=True)
class StepRecord:
    contexts: list[int]  # S1 and S2
    num_blocks: int  # taken for this step
    ended: list[int]


def members(num_drafts: int) -> st.SearchStrategy[list[Member]]:
    gains = st.lists(st.integers(1, 1 + num_drafts), min_size=1, max_size=30).map(tuple)
    return st.lists(
        st.builds(Member, st.integers(0, 20), st.integers(1, 60), st.integers(1, 20), gains), min_size=1, max_size=6
    )


def longest_of(members: list[Member]) -> int:
    """No sequence may become longer than one of them does."""
    return max(member.num_prompt_tokens + member.max_tokens for member in members)


def plain(members: list[Member], block_size: int, num_drafts: int) -> dict[int, StepRecord]:
    """Every step, by its number, with a loop over all sequences."""
    records = {}
    for now in range(100):
        contexts, num_blocks, ended = [], 0, []
        for i, member in enumerate(members):
            age = now - member.joins
            if 0 <= age < len(member.gains) and now < member.leaves:
                room = [0] * 2  # blocks that it holds before this step, and for it
                for which, step in enumerate((age - 1, age)):
                    length = member.num_prompt_tokens + 1 + sum(member.gains[: max(0, step)])
                    num_slots = (
                        min(length + num_drafts, longest_of(members) - 1) if step >= 0 else member.num_prompt_tokens
                    )
                    room[which] = -(-num_slots // block_size)
                contexts.append(member.num_prompt_tokens + 1 + sum(member.gains[:age]))
                num_blocks += room[1] - room[0]
                ended += [i] if age == len(member.gains) - 1 else []
        if contexts:
            sums = [sum(contexts), sum(context**2 for context in contexts)]
            records[now] = StepRecord(sums, num_blocks, ended)
    return records


def calendar(decodes: Decodes, members: list[Member], blocks: BlockManager, longest: int) -> dict[int, StepRecord]:
    """Every step, by its number, as the calendar has it in runs of at most `longest` steps."""
    records, now = {}, 0
    sequences: dict[int, Sequence] = {}
    while now < 100:
        for i, member in enumerate(members):
            if i in sequences and member.leaves == now and sequences[i] in decodes.sequences:
                decodes.remove(sequences[i])
                sequences[i].leave(SequenceStatus.ABORTED)
            if member.joins == now < member.leaves:
                sequences[i] = joining(i, member, blocks)
                decodes.join(sequences[i])
        assert decodes.num_step_tokens == sum(1 + decodes.num_drafts_of(each) for each in decodes.sequences)
        if not decodes.sequences:
            now += 1
            continue
        events = [time - now for member in members for time in (member.joins, member.leaves) if time > now]
        num_steps = min(longest, decodes.next_event(), *events, 100 - now)
        work = decodes.work((), 0)
        taken = [decodes.grow(0, blocks), *decodes.run(num_steps, blocks)]
        sums = np.stack([work.contexts(num_steps), work.squared_contexts(num_steps)], axis=1).tolist()
        soonest = {each: decodes.steps_until(each, each.end_length) for each in decodes.sequences}
        finished = decodes.advance(num_steps)
        assert all(soonest[each] <= num_steps for each in finished), "a sequence has its tokens sooner than is told"
        ended = [sequence.request_id for sequence in finished]
        decodes.check_integrity()
        for ahead in range(num_steps):
            num_blocks = sum(len(growth.blocks) for growth in taken if growth.ahead == ahead)
            is_last = ahead == num_steps - 1
            records[now + ahead] = StepRecord(sums[ahead], num_blocks, sorted(ended) if is_last else [])
        now += num_steps
    return records


def joining(i: int, member: Member, blocks: BlockManager) -> Sequence:
    """A sequence that has computed its prompt and got its first token."""
    sequence = bare_sequence(i, member.num_prompt_tokens, member.max_tokens)
    blocks.extend(sequence, member.num_prompt_tokens)
    sequence.set_computed(member.num_prompt_tokens)
    sequence.add_tokens(1)
    return sequence


def ragged(members: list[Member], block_size: int, num_drafts: int) -> RaggedDecodes:
    def trajectory(sequence: Sequence) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(members[sequence.request_id].gains)])

    return RaggedDecodes(block_size, longest_of(members), num_drafts, trajectory)


@given(data=st.data(), block_size=st.integers(1, 7), num_drafts=st.integers(0, 3))
def test_ragged_decodes_equal_plain_stepping(data: st.DataObject, block_size: int, num_drafts: int) -> None:
    those = data.draw(members(num_drafts))
    expected = plain(those, block_size, num_drafts)
    for longest in (1, 100):
        blocks = BlockManager(1000, block_size)
        assert calendar(ragged(those, block_size, num_drafts), those, blocks, longest) == expected


def test_blocks_that_are_held_for_older_drafts_are_not_taken_again() -> None:
    """Its five tokens and three drafts need eight of the ten that it holds."""
    those, blocks = [Member(0, 10_000, 4, (1,) * 20)], BlockManager(1000, 1)
    decodes, sequence = ragged(those, 1, num_drafts=3), joining(0, those[0], blocks)
    blocks.extend(sequence, 10)
    decodes.join(sequence)
    assert [decodes.num_blocks_due(ahead) for ahead in range(5)] == [0, 0, 0, 1, 1]


def test_nothing_is_computed_where_the_last_decode_ends_as_the_sums_do() -> None:
    those = [Member(0, 10_000, 5, (1,) * _FIRST_ROOM)]
    decodes = ragged(those, 16, num_drafts=1)
    decodes.join(joining(0, those[0], BlockManager(1000, 16)))
    decodes.advance(_FIRST_ROOM)
    assert not decodes.sequences and decodes.num_step_tokens == 0


@given(those=members(num_drafts=0), block_size=st.integers(1, 7))
def test_uniform_decodes_equal_plain_stepping(those: list[Member], block_size: int) -> None:
    expected = plain(those, block_size, num_drafts=0)
    for longest in (1, 100):
        blocks = BlockManager(1000, block_size)
        assert calendar(UniformDecodes(block_size), those, blocks, longest) == expected


def figures(work: StepWork, num_steps: int) -> tuple[Any, ...]:
    sums = work.contexts(num_steps).tolist(), work.squared_contexts(num_steps).tolist()
    return work.num_decodes, work.tokens_per_decode, work.num_context_tokens, work.num_squared_context_tokens, *sums


@pytest.mark.parametrize("num_drafts", [None, 0, 2])
def test_the_work_after_k_steps_is_the_work_of_that_step(num_drafts: int | None) -> None:
    rng = np.random.default_rng(0)
    those = [
        Member(0, 100, int(rng.integers(1, 50)), tuple(rng.integers(1, 2 + (num_drafts or 0), 30).tolist()))
        for _ in range(9)
    ]
    blocks = BlockManager(1000, 4)
    decodes: Decodes = UniformDecodes(4) if num_drafts is None else ragged(those, 4, num_drafts)
    for i, member in enumerate(those):
        decodes.join(joining(i, member, blocks))
    first = decodes.work((), 0)
    for num_passed in range(20):
        left = 20 - num_passed
        now = decodes.work((), 0)
        assert figures(first.after(num_passed), left) == figures(now, left)
        assert figures(first.after(num_passed // 2).after(num_passed - num_passed // 2), left) == figures(now, left)
        decodes.grow(0, blocks)
        decodes.advance(1)
