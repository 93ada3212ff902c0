"""The rules of routers: which server they choose of what they see, and what a router knows of a prefix cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.planning.policy_options import read_options
from engine.core.routing import ROUTERS, find_router
from engine.core.routing.prefix_estimate import PrefixEstimate
from engine.core.routing.router import Router
from engine.core.sequence import Request


@dataclass
class Server:
    """A view with made-up numbers."""

    num_requests: int = 0
    num_tokens: int = 0
    hits: int = 0
    num_waiting: int = 0
    num_running: int = 0
    num_free_blocks: int = 0
    asked: list[Request] = field(default_factory=list)

    def prefix_hits(self, request: Request) -> int:
        self.asked.append(request)
        return self.hits


SERVERS = st.lists(st.builds(Server, *[st.integers(0, 60)] * 3), min_size=1, max_size=6)


def make(name: str, **options: Any) -> Router:
    router = find_router(name)
    assert router is not None
    return router(read_options(router.options_type, options, name))


def request(num_prompt_tokens: int = 50) -> Request:
    return Request(0, num_prompt_tokens, 1)


@given(SERVERS, st.sampled_from(sorted(ROUTERS)))
def test_every_rule_chooses_one_of_the_servers_and_asks_for_prefixes_only_if_it_says_so(
    servers: list[Server], name: str
) -> None:
    rule = make(name)
    assert 0 <= rule.choose(request(), servers) < len(servers)
    assert rule.reads_prefixes or not any(server.asked for server in servers)


@given(st.integers(1, 7), st.integers(1, 30))
def test_in_turn_each_server_gets_as_many_as_the_others(num_servers: int, num_requests: int) -> None:
    rule = make("round_robin")
    chosen = [rule.choose(request(), [Server()] * num_servers) for _ in range(num_requests)]
    assert chosen == [number % num_servers for number in range(num_requests)]


@given(SERVERS)
def test_the_least_busy_server_is_the_first_with_the_fewest(servers: list[Server]) -> None:
    counts = [server.num_requests for server in servers]
    assert make("least_requests").choose(request(), servers) == counts.index(min(counts))
    by_tokens = [(server.num_tokens, server.num_requests) for server in servers]
    assert make("least_tokens").choose(request(), servers) == by_tokens.index(min(by_tokens))


@given(SERVERS, st.integers(0, 20), st.floats(1, 3), st.floats(0, 1))
def test_affinity_follows_the_largest_hit_among_servers_that_are_not_much_busier(
    servers: list[Server], max_ahead: int, max_ratio: float, min_match: float
) -> None:
    rule = make("prefix_affinity", max_ahead=max_ahead, max_ratio=max_ratio, min_match=min_match)
    chosen = rule.choose(request(), servers)
    counts = [server.num_requests for server in servers]
    fewest = min(counts)
    near = [n for n, count in enumerate(counts) if count - fewest <= max_ahead or count <= fewest * max_ratio]
    best = max(servers[n].hits for n in near)
    if best and best >= min_match * 50:
        assert chosen == min((n for n in near if servers[n].hits == best), key=lambda n: (counts[n], n))
    else:
        assert chosen == counts.index(fewest)  # of several the first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_match": 1.5}, "^options.min_match=1.5: must be >= 0 and <= 1"),
        ({"max_ahead": -1}, "^options.max_ahead=-1: must be >= 0"),
        ({"max_ratio": 0.5}, "^options.max_ratio=0.5: must be >= 1"),
        ({"slack": 3}, "^options.slack: prefix_affinity has no such setting"),
    ],
)
def test_settings_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make("prefix_affinity", **options)


def test_a_rule_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="rule='nearest': choose one of least_requests, .*round_robin"):
        find_router("nearest")
    assert find_router("mine:Rule") is None  # not imported yet


@given(st.integers(0, 12), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 8)), max_size=30))
def test_what_is_known_of_a_cache_are_the_blocks_used_last(capacity: int, prompts: list[tuple[int, int]]) -> None:
    estimate, used = PrefixEstimate(capacity), list[int]()  # in order of use, the last at the end
    for family, length in prompts:
        hashes = [100 * family + block for block in range(length)]
        kept = used[len(used) - capacity :] if capacity < len(used) else used
        expected = next((i for i, block in enumerate(hashes) if block not in kept), length)
        assert estimate.num_hits(hashes) == expected
        estimate.add(hashes)
        used = [block for block in used if block not in hashes] + hashes[::-1]
        used = used[max(0, len(used) - capacity) :]
        assert len(estimate) == len(used)
