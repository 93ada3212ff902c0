"""The weighted sum of scores: of what a router was sent, of what servers tell, and of who was without a new prompt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.core.routing.builders import SERVERS, Server, make, request


@given(SERVERS, st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=4, max_size=4))
def test_the_highest_weighted_score_is_chosen(servers: list[Server], weights: list[float]) -> None:
    prefix, queue, kv_use, running = weights
    rule = make("weighted_score", prefix=prefix, queue=queue, kv_use=kv_use, running=running)

    def shortness(name: str, server: Server) -> float:
        values = [getattr(each, name) for each in servers]
        span = max(values) - min(values)
        return (max(values) - getattr(server, name)) / span if span else 1.0

    def score(server: Server) -> float:
        return (
            prefix * server.hits / 50 + queue * shortness("num_waiting", server)
            + kv_use * server.num_free_blocks / server.num_blocks + running * shortness("num_running", server)
        )  # fmt: skip

    best = max(map(score, servers))
    chosen = {rule.choose(request(request_id=number), servers) for number in range(60)}
    assert all(score(servers[number]) == pytest.approx(best) for number in chosen)
    if all(score(server) == best for server in servers):
        assert chosen == {*range(len(servers))}  # of equal ones each is drawn


def test_prompts_that_no_server_has_go_to_the_one_that_was_without_one_longest() -> None:
    rule = make("weighted_score", queue=0.0, kv_use=0.0, no_hit_lru=2.0)
    servers = [Server(number=number) for number in range(4)]
    assert [rule.choose(request(request_id=number), servers) for number in range(6)] == [0, 1, 2, 3, 0, 1]
    servers[3].hits = 40
    assert rule.choose(request(), servers) == 3  # changes no order
    servers[3].hits = 0
    assert rule.choose(request(), servers[:2] + servers[3:]) == 2, "the third is down"
    assert rule.choose(request(), servers) == 2
    servers[3].num_free_blocks = 60
    weighed = make("weighted_score", prefix=0.0, queue=0.0, kv_use=1.0, no_hit_lru=2.0)
    assert [weighed.choose(request(), servers) for _ in range(3)] == [0, 1, 3]  # 1 + 2 / 3 for the last, and 1 + 4 / 3


@given(SERVERS, st.sampled_from([0.0, 0.4, 1.0]))
def test_what_servers_tell_of_their_caches_counts_by_where_it_is(servers: list[Server], host: float) -> None:
    rule = make("weighted_score", queue=0.0, kv_use=0.0, precise=True, host=host)
    scores = [server.num_tokens + host * server.hits for server in servers]
    assert scores[rule.choose(request(), servers)] == pytest.approx(max(scores))


def test_what_is_behind_the_device_counts_only_where_servers_tell_of_it() -> None:
    with pytest.raises(ValueError, match=r"options.host=0.4: needs precise=true"):
        make("weighted_score", host=0.4)
