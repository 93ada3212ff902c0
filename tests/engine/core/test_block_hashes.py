"""Hashes that are made when they are asked for are the same as those that are there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.core.block_hashes import SpannedHashes


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=5), st.integers(1, 7), st.data())
def test_spans_are_told_as_a_list_of_all_their_hashes(starts: list[int], span: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(starts) * span))
    known = [start + i for start in starts for i in range(span)][:count]
    start, end = data.draw(st.integers(0, count + 2)), data.draw(st.integers(0, count + 2))
    hashes = SpannedHashes(starts, span, count)
    for _ in ("made in part", "all there"):
        assert hashes.count == count
        assert [hashes.at(place) for place in range(count)] == known
        assert hashes.part(start, end) == known[start:end]
        assert hashes.all() == known
