"""Requests behind several frontends, each of which takes turns for itself."""

from __future__ import annotations

from collections import Counter

from engine.core.sequence import Request
from experiments.inferencex.frontends import Frontends, FrontendsOptions

SERVERS = [object()] * 4


def chosen(number: int, count: int) -> list[int]:
    rule = Frontends(FrontendsOptions(number))
    return [rule.choose(Request(each, 5, 5), SERVERS) for each in range(count)]  # type: ignore[arg-type]


def test_one_takes_turns_and_several_are_even_in_the_long_run_only() -> None:
    assert chosen(1, 8) == [0, 1, 2, 3] * 2
    several = chosen(10, 4000)
    assert all(990 <= count <= 1010 for count in Counter(several).values())
    assert sum(one == next_one for one, next_one in zip(several, several[1:], strict=False)) > 500
