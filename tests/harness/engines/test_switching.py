"""A thread that asks for quick turns gets them, and is afterwards as it was."""

from __future__ import annotations

import sys

import pytest

from harness.engines.switching import _attributes, quick_switches, quick_wakes


def test_turns_are_as_before_in_the_end() -> None:
    interval = sys.getswitchinterval()
    with quick_switches():
        assert sys.getswitchinterval() == pytest.approx(5e-5)
    assert sys.getswitchinterval() == interval
    before = _attributes()
    if before is None or not before[5]:
        pytest.skip("this kernel tells no slice")
    with quick_wakes():
        assert _attributes() == (*before[:5], 100_000, *before[6:])
    assert _attributes() == before
