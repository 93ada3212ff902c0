"""What the process before an engine takes for a request (`simulator.versions.front_end`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class FrontEndTimes(NamedTuple):
    """What a request costs before an engine sees it.

    Attributes:
        request_ns: work of the event loop for a request.
        prompt_token_ns: work of the tokeniser for each token of a prompt.
        latency_ns: from client to engine beside that work, in the mean.
        spread: latencies are uniform between 1 - spread and 1 + spread times the mean.
        processes: of each server.
        passes: how often a process does that work for a request before its engine sees it.
    """

    request_ns: int = 0
    prompt_token_ns: float = 0.0
    latency_ns: int = 0
    spread: float = 0.0
    processes: int = 1
    passes: int = 1

    def fitted(self, values: Mapping[str, float]) -> FrontEndTimes:
        """These times with the constants among `values` that were fitted: front_end_ms is `latency_ns`,
        front_end_token_us is `prompt_token_ns`."""
        latency, token = values.get("front_end_ms"), values.get("front_end_token_us")
        return self._replace(
            latency_ns=self.latency_ns if latency is None else round(1e6 * latency),
            prompt_token_ns=self.prompt_token_ns if token is None else 1e3 * token,
        )


# The way from a client to a server on one machine, 1.3 ms in the mean between our own two (experiments/three_worlds.py
# on two Intel Xeon cores, 2026-11-27). However short: who answers a step's tokens with a request misses the next step.
ROUND_TRIP = FrontEndTimes(latency_ns=1_300_000, spread=0.5)
