"""The process before an engine that takes in requests: it parses, renders and tokenises them.

    client ──▶ an event loop, shared by all requests that are there ──▶ a tokeniser, one by one ──▶ latency ──▶ engine

vLLM's API server is an event loop. A request passes through it in several turns, and each turn waits for a turn of all
other requests that are there: they share the processor equally. So a thousand requests at once reach the engine nearly
together, after the work of all of them, which is how public runs look (`vllm_versions` has the constants).
Prompts are tokenised in a thread of their own, in order; of several processes the first that is free takes the next.
What the process does with tokens that come out is not priced: it runs beside the engine and rarely holds it up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush, heapreplace
from math import ceil

from engine.core.routing.draws import draw
from simulator.arrivals import NEVER, Arrivals, OpenLoop
from simulator.nanoseconds import nearest_ns
from simulator.versions.front_end_times import FrontEndTimes

_STEPS = 1 << 20  # of the draws
_ROUNDING = 1e-3  # ns that a clock may be off


class FrontEnd:
    """Arrivals as the engines behind `num_processes` processes see them.

    Args:
        arrivals: of the clients.
        prompt_tokens: of each row; needed from its arrival until it is seen.

    Attributes:
        next_ns: as of `Arrivals`. Where no end of a request changes when another arrives, it is when an engine sees the
            next one; else when a turn of a process may end.
    """

    def __init__(
        self,
        arrivals: Arrivals,
        times: FrontEndTimes,
        prompt_tokens: Sequence[int] | Mapping[int, int],
        num_processes: int,
    ) -> None:
        self._arrivals = arrivals
        self._request_ns, self._latency_ns = times.passes * times.request_ns, times.latency_ns
        self._prompt_token_ns: float = times.passes * times.prompt_token_ns
        self._shortest: float = 1 - times.spread  # latency, as a multiple of the mean
        self._width: float = 2 * times.spread
        self._prompt_tokens = prompt_tokens
        self._num_processes = num_processes
        self._clock = 0.0  # work in ns that each request which has been there from the start got until `_now`
        self._now = 0
        self._working: deque[tuple[float, int, int]] = deque()  # the clock when done, row, arrival; in order
        self._tokenised_ns = [0.0] * num_processes  # a heap: when each tokeniser is done with what it has
        self._on_way: list[tuple[int, int, int]] = []  # a heap: when the engine sees it, row, arrival
        self._seen: list[tuple[int, int]] = []  # at `next_ns`, if arrivals are fixed
        self._are_fixed = isinstance(arrivals, OpenLoop)
        self.next_ns = self._coming_ns = arrivals.next_ns  # the latter of the arrivals
        if self._are_fixed:
            self._seen = self._pass_turns()

    def pop_due(self, now_ns: int) -> list[tuple[int, int]]:
        """Pairs of intended arrival and row, in the order in which the engines see them."""
        due: list[tuple[int, int]] = []
        while self.next_ns <= now_ns:
            if self._are_fixed:
                due += self._seen
                self._look_ahead()
                self._seen = self._pass_turns()
            else:
                due += self._turn()
                self._look_ahead()
        return due

    def _pass_turns(self) -> list[tuple[int, int]]:
        """Take turns until the engines see somebody, at `next_ns`; nobody if nobody comes any more."""
        while self.next_ns < NEVER:
            if seen := self._turn():
                return seen
            self._look_ahead()
        return []

    def _turn(self) -> list[tuple[int, int]]:
        """What happens at `next_ns`; returns whom the engines see then."""
        time, on_way = self.next_ns, self._on_way
        if self._working:
            self._work_until(time)
        self._now = time
        if self._coming_ns <= time:
            done = self._clock + self._request_ns
            for arrival, row in self._arrivals.pop_due(time):
                self._working.append((done, row, arrival))
            self._coming_ns = self._arrivals.next_ns
        seen: list[tuple[int, int]] = []
        while on_way and on_way[0][0] <= time:
            _, row, arrival = heappop(on_way)
            seen.append((arrival, row))
        return seen

    def on_finish(self, row: int, now_ns: int) -> None:
        self._arrivals.on_finish(row, max(now_ns, self._now))  # what is refused is so at its arrival
        self.look()  # somebody may have waited for this end

    def look(self) -> None:
        """An arrival may be earlier than it was."""
        self._coming_ns = self._arrivals.next_ns
        if self._coming_ns < self.next_ns:
            self.next_ns = self._coming_ns

    def _work_until(self, time: int) -> None:
        """Share the processes among the requests that are there until `time`, when at most the first is done."""
        working = self._working
        self._clock += (time - self._now) / self._requests_per_process()
        while working and working[0][0] <= self._clock + _ROUNDING:
            _, row, arrival = working.popleft()
            begin: float = self._tokenised_ns[0]
            if begin < time:
                begin = float(time)
            done_ns = begin + self._prompt_token_ns * self._prompt_tokens[row]
            heapreplace(self._tokenised_ns, done_ns)
            heappush(self._on_way, (ceil(done_ns) + self._latency_of(row), row, arrival))

    def _requests_per_process(self) -> float:
        count = len(self._working)
        return count / self._num_processes if count > self._num_processes else 1.0

    def _done_ns(self) -> int:
        """When the next request is done if no other comes before."""
        left = self._working[0][0] - self._clock
        return self._now + (ceil(left * self._requests_per_process()) if left > 0.0 else 0)

    def _latency_of(self, row: int) -> int:
        if not self._width:
            return self._latency_ns
        return nearest_ns(self._latency_ns * (self._shortest + self._width * draw(row, _STEPS) / _STEPS))

    def _look_ahead(self) -> None:
        next_ns = self._coming_ns
        if self._working and (done := self._done_ns()) < next_ns:
            next_ns = done
        if self._on_way and (due := self._on_way[0][0]) < next_ns:
            next_ns = due
        self.next_ns = next_ns


class SecondFrontEnd:
    """The front ends of servers for decodes, where a request is parsed and tokenised again.

    Prompts do not wait for one another's tokens here: vLLM hands up to 32 that wait to its tokeniser at once
    (`AsyncMicrobatchTokenizer`), which shares them out to the cores, and such servers have all requests of a fleet.

    Args:
        prompt_tokens: of each row.
    """

    def __init__(self, times: FrontEndTimes, prompt_tokens: Sequence[int], num_processes: int) -> None:
        self._coming = Coming()
        self._prompt_tokens, self._prompt_token_ns = prompt_tokens, times.prompt_token_ns
        self._front_end = FrontEnd(
            self._coming, times._replace(prompt_token_ns=0.0, passes=1), prompt_tokens, num_processes
        )

    @property
    def next_ns(self) -> int:
        """When the next request has passed, at the earliest; NEVER where none is there."""
        return self._front_end.next_ns

    def enter(self, row: int, at_ns: int) -> None:
        """A request comes at this time, which is not past."""
        self._coming.push(row, at_ns + round(self._prompt_token_ns * self._prompt_tokens[row]))
        self._front_end.look()

    def pop_due(self, now_ns: int) -> list[int]:
        """The rows that have passed, in order."""
        return [row for _, row in self._front_end.pop_due(now_ns)]


class Coming:
    """Arrivals that are added one by one."""

    def __init__(self) -> None:
        self._coming: list[tuple[int, int]] = []  # a heap of times and rows
        self.next_ns = NEVER

    def push(self, row: int, at_ns: int) -> None:
        heappush(self._coming, (at_ns, row))
        self.next_ns = self._coming[0][0]

    def pop_due(self, now_ns: int) -> list[tuple[int, int]]:
        due = []
        while self._coming and self._coming[0][0] <= now_ns:
            due.append(heappop(self._coming))
        self.next_ns = self._coming[0][0] if self._coming else NEVER
        return due

    def on_finish(self, row: int, now_ns: int) -> None:
        """Nobody waits for an end."""
