"""The rules of routers: which server they choose of what they see."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.core.routing import ROUTERS, find_router
from engine.core.routing.draws import draw
from tests.engine.core.routing.builders import SERVERS, Server, make, request


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


def counts_of(chosen: list[int], num_servers: int) -> list[int]:
    return [chosen.count(number) for number in range(num_servers)]


@given(st.integers(1, 9), st.integers(0, 2**63 - 1))
def test_draws_are_even_repeatable_and_differ_by_seed(num_servers: int, seed: int) -> None:
    servers = [Server()] * num_servers
    requests = [request(request_id=number) for number in range(400)]
    chosen = [make("random", seed=seed).choose(each, servers) for each in requests]
    assert chosen == [make("random", seed=seed).choose(each, servers) for each in requests]
    # A binomial count is within six of its standard deviations.
    spread = 6 * (400 * (1 - 1 / num_servers) / num_servers) ** 0.5
    assert all(abs(count - 400 / num_servers) <= spread for count in counts_of(chosen, num_servers))
    if num_servers > 1:
        assert chosen != [make("random", seed=seed ^ 1).choose(each, servers) for each in requests]


@given(SERVERS, st.integers(0, 10**6))
def test_of_two_that_are_drawn_the_less_busy_one_is_chosen(servers: list[Server], request_id: int) -> None:
    chosen = make("power_of_two").choose(request(request_id=request_id), servers)
    busier = [server for server in servers if server.num_requests >= servers[chosen].num_requests]
    assert len(busier) >= min(2, len(servers))  # itself, and the other that was drawn


def test_all_pairs_of_servers_are_drawn_and_two_choices_are_far_more_even_than_one() -> None:
    loads = {}
    for name in ("random", "power_of_two"):
        servers, rule = [Server() for _ in range(10)], make(name)
        for number in range(2000):
            servers[rule.choose(request(request_id=number), servers)].num_requests += 1
        loads[name] = max(server.num_requests for server in servers)
    assert loads["power_of_two"] <= 203 < 215 < loads["random"]
    busy = [Server(number) for number in range(4)]  # the chosen one is the first of its pair
    chosen = counts_of([make("power_of_two").choose(request(request_id=number), busy) for number in range(600)], 4)
    assert [round(count / 100) for count in chosen] == [3, 2, 1, 0]  # pairs with a busier server: 3, 2, 1 and 0 of 6


@given(st.integers(1, 8), st.lists(st.integers(0, 2**60), min_size=1, max_size=40, unique=True))
def test_a_session_stays_and_another_server_moves_only_the_sessions_that_it_gets(
    count: int, sessions: list[int]
) -> None:
    rule, busy = make("session_affinity"), [Server(number, number=number) for number in range(count)]
    before = {session: rule.choose(request(session=session), busy) for session in sessions}
    more = [Server(), *busy[1:], Server(number=count)]
    after = {session: rule.choose(request(session=session), more) for session in sessions}
    assert all(after[session] in (before[session], count) for session in sessions)
    fewer = {session: more[1:][rule.choose(request(session=session), more[1:])].number for session in sessions}
    assert all(fewer[session] == after[session] for session in sessions if after[session])
    assert rule.choose(request(), [Server(2), Server(1)]) == 1  # without a session by load


def test_sessions_are_spread_over_all_servers() -> None:
    rule, servers = make("session_affinity"), [Server(number=number) for number in range(5)]
    chosen = [rule.choose(request(session=number), servers) for number in range(1000)]
    assert all(150 < count < 250 for count in counts_of(chosen, 5))


@given(SERVERS, st.integers(1, 8))
def test_waiting_counts_four_times_and_what_was_sent_since_counts_as_waiting(
    servers: list[Server], num_requests: int
) -> None:
    rule, sent = make("vllm_balancer", counts_in_flight=False), [0] * len(servers)
    for number, server in enumerate(servers):
        server.number = number
    for _ in range(num_requests):
        scores = [
            4 * (server.num_waiting + more) + server.num_running for server, more in zip(servers, sent, strict=True)
        ]
        chosen = rule.choose(request(), servers)
        assert chosen == scores.index(min(scores))
        sent[chosen] += 1
    servers[0].num_running += 1  # it is told anew
    scores = [4 * server.num_waiting + server.num_running for server in servers]
    assert rule.choose(request(), servers) == scores.index(min(scores))


def test_what_was_sent_to_a_rank_stays_with_it_when_others_come_and_go() -> None:
    rule = make("vllm_balancer", counts_in_flight=False)
    first, second, third = [Server(number=number) for number in range(3)]
    assert [rule.choose(request(), [first, second]) for _ in range(3)] == [0, 1, 0]
    assert rule.choose(request(), [first, second, third]) == 2  # two, one and none were sent
    assert rule.choose(request(), [second, third]) == 0
    third.num_running += 1  # all are told anew
    assert rule.choose(request(), [second, third]) == 0


def test_ranks_take_turns_and_count_what_is_in_flight_and_a_full_cache_makes_a_queue_longer() -> None:
    rule, servers = make("vllm_balancer"), [Server(number=number, num_free_blocks=60) for number in range(3)]
    assert [rule.choose(request(), servers) for _ in range(3)] == [0, 1, 2]
    servers[0].num_requests = 9  # beside what it tells
    servers[1].num_waiting = servers[2].num_waiting = 2
    servers[1].num_free_blocks = 24  # 0.6 of its blocks are in use: its queue weighs 2 * 6 * 0.1 more
    assert [rule.choose(request(), servers) for _ in range(3)] == [2, 2, 1]
    servers[2].num_blocks = 0  # a server that does not tell of its cache
    assert rule.choose(request(), servers) == 2


def test_of_three_servers_the_idle_one_is_among_two_that_are_drawn_for_two_requests_of_three() -> None:
    rule = make("power_of_two")
    for idle in range(3):
        servers = [Server(int(number != idle)) for number in range(3)]
        chosen = [rule.choose(request(request_id=i), servers) for i in range(3000)]
        assert chosen.count(idle) / 3000 == pytest.approx(2 / 3, abs=0.03)
    first = [rule.choose(request(request_id=i), [Server()] * 3) for i in range(100)]
    assert first == [draw(i, 3) for i in range(100)], "of two with as many, the first one drawn"


@given(SERVERS, st.integers(0, 20), st.floats(1, 3), st.floats(0, 1))
@example([Server(), Server()], 0, 1.0, 0.0)
@example([Server(2, hits=5), Server(1, hits=5)], 16, 1.0, 0.1)
@example([Server(2, hits=5), Server(1)], 16, 1.0, 0.1)
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


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 60)), min_size=1, max_size=5),
    st.floats(0, 1),
    st.integers(0, 40),
)
@example([(50, 0), (40, 0), (0, 0)], 0.8, 0)
@example([(50, 40), (0, 9)], 0.8, 30)
@example([(50, 40), (0, 9)], 0.8, 31)
def test_of_servers_that_have_the_prompt_the_one_with_the_least_to_compute_is_chosen_unless_it_is_far_behind(
    servers: list[tuple[int, int]], min_match: float, max_ahead: int
) -> None:
    rule = make("token_load", min_match=min_match, max_ahead_tokens=max_ahead)
    views = [Server(hits=hits, num_uncached_tokens=load) for hits, load in servers]
    chosen = {rule.choose(request(request_id=number), views) for number in range(80)}
    having = {n for n, (hits, _) in enumerate(servers) if hits >= min_match * 50}
    without = {*range(len(servers))} - having
    allowed = having or without
    if having and without and max_ahead:
        ahead = min(servers[n][1] for n in having) - min(servers[n][1] for n in without)
        allowed = having | without if ahead > max_ahead else having
    totals = {n: servers[n][1] + 50 - servers[n][0] for n in allowed}
    assert chosen == {n for n, total in totals.items() if total == min(totals.values())}  # each of equal ones is drawn


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


@pytest.mark.parametrize(
    ("name", "option"), [("random", "seed"), ("power_of_two", "seed"), ("weighted_score", "queue")]
)
def test_seeds_and_weights_below_zero_are_refused(name: str, option: str) -> None:
    with pytest.raises(ValueError, match=f"^options.{option}=-1: must be >= 0"):
        make(name, **{option: -1})


def test_a_rule_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="rule='nearest': choose one of least_requests, .*round_robin"):
        find_router("nearest")
    assert find_router("mine:Rule") is None  # not imported yet
