"""A router before servers: which of them gets a request, what comes back, and what happens when one is gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.errors import ConfigError
from tests.harness.engines.serving.builders import SIMULATED, Server, serving

BODY = {"prompt": [7] * 64, "max_tokens": 3}


def sent(router: Server, servers: list[Server]) -> list[float]:
    return [router.metric(f'twinserve:router_requests_total{{server="{each.address}"}}') for each in servers]


def test_rules_of_simulated_fleets_choose_among_servers(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "a", *SIMULATED) as first,
        serving(tmp_path / "b", *SIMULATED) as second,
    ):
        servers = [first, second]
        addresses = f"serve.servers=[{first.address},{second.address}/v1]"
        with serving(tmp_path, "router=round_robin", addresses) as router:
            for _ in range(4):
                status, document = router.ask("/v1/completions", BODY)
                assert status == 200 and document["usage"]["completion_tokens"] == 3
            events = router.stream("/v1/completions", BODY)
            assert events[-1]["choices"][0]["finish_reason"] == "length"
            assert sent(router, servers) == [3, 2]
            assert router.ask("/v1/models")[1]["data"][0]["id"] == "Qwen/Qwen3-0.6B"
            assert router.ask("/v1/completions", {**BODY, "max_tokens": 0})[0] == 400  # as the server says
            odd_bodies: list[dict[str, Any]] = [{**BODY, "max_tokens": float("inf")}]
            for prompt in ([1, 10**30], [2**31] * 64, [[1, "x"]], [[7] * 64, {}], [-1]):
                odd_bodies.append({"prompt": prompt})
                assert first.ask("/v1/completions", odd_bodies[-1])[0] == 400
            for odd in odd_bodies:
                assert router.ask("/v1/completions", odd)[0] == 400
            running = f'twinserve:router_requests_running{{server="{first.address}"}}'
            assert router.metric(running) == 0
        with serving(tmp_path, "router=prefix_affinity", addresses) as router:
            for _ in range(4):
                router.ask("/v1/completions", BODY)
            assert sorted(sent(router, servers)) == [0, 4]
        with serving(
            tmp_path, "router=least_requests", f"serve.servers=[http://127.0.0.1:9,{first.address}]"
        ) as router:
            for _ in range(3):  # the first is down
                assert router.ask("/v1/completions", BODY)[0] == 200
            assert sent(router, [first]) == [3]
    with serving(tmp_path, "serve.servers=[http://127.0.0.1:9]") as router:
        status, document = router.ask("/v1/completions", BODY)
        assert status == 503 and "no server" in document["error"]["message"]


def test_a_rule_that_needs_to_know_caches_is_refused(tmp_path: Path) -> None:
    overrides = ("router=weighted_score", "router.options.precise=true", "serve.servers=[http://127.0.0.1:9]")
    with pytest.raises(ConfigError, match="precise"), serving(tmp_path, *overrides):
        pass
