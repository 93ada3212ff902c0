"""The entry of a fleet: fetches requests from the arrivals when they are due, and chooses the server of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.core.routing.prefix_estimate import PrefixEstimate
from engine.core.routing.router import Router
from engine.core.sequence import Request, RequestRefusedError
from simulator.arrivals import Arrivals
from simulator.replica import Replica

MakeRequest = Callable[[int, int], Request]
"""Makes the request of a row of the trace, given the row and its intended arrival in ns; the row is its id."""


class Metrics(NamedTuple):
    """What a server tells of itself when its metrics are read."""

    num_waiting: int
    num_running: int
    num_free_blocks: int


class View:
    """A server as the router sees it.

    The gateway's own accounts are exact: requests and tokens under way, and the prompts that it has sent. What the
    server tells is as it was when its metrics were last read, or as it is where nobody reads them.
    """

    def __init__(self, replica: Replica, clock: Callable[[], int], *, keeps_prefixes: bool) -> None:
        self.num_requests = 0
        self.num_tokens = 0
        self._replica = replica
        self._clock = clock
        self._metrics: Metrics | None = None
        blocks = replica.scheduler.blocks
        self.num_blocks = blocks.num_blocks
        self._block_size = blocks.block_size
        self._estimate = PrefixEstimate(blocks.num_blocks) if keeps_prefixes else None

    def read(self) -> None:
        """Read the server's metrics, which hold until they are read again."""
        self._metrics = None
        self._metrics = Metrics(self.num_waiting, self.num_running, self.num_free_blocks)

    @property
    def num_waiting(self) -> int:
        return self._metrics.num_waiting if self._metrics else self._replica.num_waiting

    @property
    def num_running(self) -> int:
        return self._metrics.num_running if self._metrics else self._replica.scheduler.num_running

    @property
    def num_free_blocks(self) -> int:
        return self._metrics.num_free_blocks if self._metrics else self._replica.num_free_blocks(self._clock())

    def prefix_hits(self, request: Request) -> int:
        assert self._estimate is not None, "the rule says that it reads prefixes"
        return self._estimate.num_hits(self._prompt_hashes(request)) * self._block_size

    def send(self, request: Request) -> None:
        """Hand a request over, unless the server refuses it.

        Raises:
            RequestRefusedError: it can never run there.
        """
        self._replica.scheduler.check(request)
        self.num_requests += 1
        self.num_tokens += request.num_prompt_tokens
        if self._estimate is not None:
            self._estimate.add(self._prompt_hashes(request))
        self._replica.submit(request)

    def forget(self, request: Request) -> None:
        """The request has ended."""
        self.num_requests -= 1
        self.num_tokens -= request.num_prompt_tokens

    def _prompt_hashes(self, request: Request) -> Sequence[int]:
        """Identities of the full blocks of the prompt that the trace knows."""
        hashes = request.sequences[0].block_hashes
        return [] if hashes is None else hashes[: request.num_prompt_tokens // self._block_size]


class Gateway:
    """Sends requests to `replicas`; who runs it calls `dispatch` at `next_ns`, and not before.

    Args:
        rule: chooses among several servers; None for one.
        clock: the time, for views that depend on it.
        on_earlier: called when the next request comes earlier than `next_ns` was.

    Attributes:
        next_ns: no request comes before this time, unless one that runs now ends; NEVER where none does.
    """

    def __init__(
        self,
        arrivals: Arrivals,
        make_request: MakeRequest,
        replicas: Sequence[Replica],
        rule: Router | None = None,
        *,
        clock: Callable[[], int] = lambda: 0,
        on_earlier: Callable[[], None] = lambda: None,
    ) -> None:
        assert rule is not None or len(replicas) == 1, "several servers need a rule"
        self._arrivals = arrivals
        self._make_request = make_request
        self._replicas = replicas
        self._rule = rule
        self._on_earlier = on_earlier
        keeps_prefixes = rule is not None and rule.reads_prefixes
        self._views = [View(replica, clock, keeps_prefixes=keeps_prefixes) for replica in replicas]
        for replica, view in zip(replicas, self._views, strict=True):
            replica.on_finish = self._on_end(view)
        self.next_ns = arrivals.next_ns

    def read_metrics(self) -> None:
        """Read the metrics of all servers: until the next call, rules see them as they are now."""
        for view in self._views:
            view.read()

    def dispatch(self, until_ns: int) -> None:
        """Send all requests that arrive up to `until_ns` to their servers."""
        while self._arrivals.next_ns <= until_ns:  # a refusal can release the next request at once
            for arrival, row in self._arrivals.pop_due(until_ns):
                self._send(self._make_request(row, arrival))
        self.next_ns = self._arrivals.next_ns

    def _send(self, request: Request) -> None:
        number = 0 if self._rule is None else self._rule.choose(request, self._views)
        try:
            self._views[number].send(request)
        except RequestRefusedError as refusal:
            self._replicas[number].observer.on_refused(request, str(refusal))
            self._arrivals.on_finish(request.request_id, request.arrival_time)
            request.forget_sequences()

    def _on_end(self, view: View) -> Callable[[Request, int], None]:
        arrivals = self._arrivals

        def on_end(request: Request, now_ns: int) -> None:
            view.forget(request)
            arrivals.on_finish(request.request_id, now_ns)
            if arrivals.next_ns < self.next_ns:
                self.next_ns = arrivals.next_ns
                self._on_earlier()

        return on_end
