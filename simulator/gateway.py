"""The entry of a fleet: fetches requests from the arrivals when they are due, and chooses the servers of each.

Where prompts and decodes have servers of their own, it chooses one of each when a request arrives, as llm-d does.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.core.routing.prefix_estimate import PrefixEstimate
from engine.core.routing.router import Router
from engine.core.sequence import Request, RequestRefusedError
from simulator.arrivals import Arrivals
from simulator.handover import Port, note_prompt, prompt_of
from simulator.replica import Replica

MakeRequest = Callable[[int, int], Request]
"""Makes the request of a row of the trace, given the row and its intended arrival in ns; the row is its id."""

Later = Callable[[int, Callable[[], None]], None]


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

    def __init__(self, replica: Replica, clock: Callable[[], int], *, keeps_prefixes: bool, reads_caches: bool) -> None:
        self.num_requests = 0
        self.num_tokens = 0
        self._replica = replica
        self._clock = clock
        self._metrics: Metrics | None = None
        blocks = replica.scheduler.blocks
        self.num_blocks = blocks.num_blocks
        self._block_size = blocks.block_size
        self._estimate = PrefixEstimate(blocks.num_blocks) if keeps_prefixes else None
        self._coming: Counter[int] | None = Counter() if reads_caches else None  # blocks of prompts that are under way

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

    def cached_tokens(self, request: Request) -> tuple[int, int]:
        assert self._coming is not None, "the rule says that it reads caches"
        hashes = list(self._prompt_hashes(request))
        on_device, behind = self._replica.scheduler.blocks.cached_prefix(hashes)
        num_coming = next((n for n, block in enumerate(hashes) if block not in self._coming), len(hashes))
        if num_coming > on_device:
            on_device, behind = num_coming, max(0, on_device + behind - num_coming)
        return on_device * self._block_size, behind * self._block_size

    def check(self, request: Request) -> None:
        """Raises RequestRefusedError: it can never run there."""
        self._replica.scheduler.check(request)

    def count(self, request: Request) -> None:
        """The request will be sent there, or has been."""
        self.num_requests += 1
        self.num_tokens += request.num_prompt_tokens
        if self._estimate is not None:
            self._estimate.add(self._prompt_hashes(request))
        if self._coming is not None:
            self._coming.update(self._prompt_hashes(request))

    def submit(self, request: Request, now_ns: int) -> None:
        """Hand a counted request over."""
        self._replica.submit(request, now_ns)

    def forget(self, request: Request) -> None:
        """The request has ended."""
        self.num_requests -= 1
        self.num_tokens -= request.num_prompt_tokens
        if self._coming is not None:
            for block in self._prompt_hashes(request):
                self._coming[block] -= 1
                if not self._coming[block]:
                    del self._coming[block]

    def _prompt_hashes(self, request: Request) -> Sequence[int]:
        """Identities of the full blocks of the prompt that the trace knows."""
        hashes = request.sequences[0].block_hashes
        return [] if hashes is None else hashes[: request.num_prompt_tokens // self._block_size]


class Desk:
    """Chooses among servers of the same role.

    Args:
        rule: of the choice; None for one server.

    Attributes:
        views: the servers, as the rule sees them.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        rule: Router | None,
        clock: Callable[[], int],
        *,
        keeps_prefixes: bool = False,
    ) -> None:
        assert rule is not None or len(replicas) == 1, "several servers need a rule"
        self.replicas = replicas
        self._rule = rule
        keeps = keeps_prefixes or (rule is not None and rule.reads_prefixes)
        reads_caches = rule is not None and rule.reads_caches
        self.views = [View(each, clock, keeps_prefixes=keeps, reads_caches=reads_caches) for each in replicas]
        if reads_caches:
            for replica in replicas:
                replica.compress = False  # within a run of steps nobody knows what is cached

    def choose(self, request: Request) -> int:
        return 0 if self._rule is None else self._rule.choose(request, self.views)


class Decoders(NamedTuple):
    """The servers that decode what others have prefilled, and their way to the network.

    Attributes:
        prefill_ports, ports: of the servers for prompts, and of these.
        rule: chooses the server; None for one.
        local_tokens: a prompt with at most so many tokens that its server for decodes has not seen is computed there.
        request_ns: from the end of a prompt until the request is in the queue of the other server.
    """

    replicas: Sequence[Replica]
    prefill_ports: Sequence[Port]
    ports: Sequence[Port]
    rule: Router | None
    local_tokens: int = 0
    request_ns: int = 0


class Gateway:
    """Sends requests to `replicas`; who runs it calls `dispatch` at `next_ns`, and not before.

    Args:
        replicas: for all of a request or, with `decoders`, for its prompt.
        rule: chooses among several servers; None for one.
        clock: the time, for views that depend on it.
        on_earlier: called when the next request comes earlier than `next_ns` was.
        decoders: for the rest of a request.
        later: calls a function so many ns later, before anybody arrives.

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
        decoders: Decoders | None = None,
        later: Later = lambda delay_ns, then: then(),
    ) -> None:
        self._arrivals = arrivals
        self._make_request = make_request
        self._on_earlier = on_earlier
        self._desk = Desk(replicas, rule, clock)
        self._apart: dict[int, tuple[Request, int]] = {}  # whose prompt is computed elsewhere, and who will decode it
        for number, (replica, view) in enumerate(zip(replicas, self._desk.views, strict=True)):
            replica.on_finish = self._on_end(view) if decoders is None else self._on_prompt(number, view)
        self._decoders = decoders
        self._later = later
        self._handed_over: list[tuple[int, int, int, Request]] = []  # a heap by the time when they are due
        if decoders is not None:
            local = decoders.local_tokens > 0
            self._decode_desk = Desk(decoders.replicas, decoders.rule, clock, keeps_prefixes=local)
            for replica, view in zip(decoders.replicas, self._decode_desk.views, strict=True):
                replica.on_finish = self._on_end(view)
        self.next_ns = arrivals.next_ns

    def read_metrics(self) -> None:
        """Read the metrics of all servers: until the next call, rules see them as they are now."""
        for view in self._desk.views + (self._decode_desk.views if self._decoders else []):
            view.read()

    def dispatch(self, until_ns: int) -> None:
        """Send all requests that arrive up to `until_ns` to their servers."""
        while self._arrivals.next_ns <= until_ns:  # a refusal can release the next request at once
            for arrival, row in self._arrivals.pop_due(until_ns):
                request = self._make_request(row, arrival)
                if self._decoders is None:
                    self._send(request, self._desk, until_ns)
                else:
                    self._send_apart(request, self._decoders, until_ns)
        self.next_ns = self._arrivals.next_ns

    def _send(self, request: Request, desk: Desk, now_ns: int, number: int | None = None) -> None:
        number = desk.choose(request) if number is None else number
        view = desk.views[number]
        try:
            view.check(request)
        except RequestRefusedError as refusal:
            self._refuse(request, desk.replicas[number], refusal)
            return
        view.count(request)
        view.submit(request, now_ns)

    def _send_apart(self, request: Request, decoders: Decoders, now_ns: int) -> None:
        """Choose both servers, and send the prompt to the first; or all of a short one to the second."""
        desk = self._decode_desk
        number = desk.choose(request)
        if decoders.local_tokens:
            unseen = request.num_prompt_tokens - desk.views[number].prefix_hits(request)
            if unseen <= decoders.local_tokens:
                self._send(request, desk, now_ns, number)
                return
        request.prefilled_elsewhere = True
        prompt = prompt_of(request)
        chosen = self._desk.choose(prompt)
        for at, server, part in ((desk, number, request), (self._desk, chosen, prompt)):
            try:
                at.views[server].check(part)
            except RequestRefusedError as refusal:
                self._refuse(request, at.replicas[server], refusal)
                return
        desk.views[number].count(request)
        self._apart[request.request_id] = request, number
        self._desk.views[chosen].count(prompt)
        self._desk.views[chosen].submit(prompt, now_ns)

    def _refuse(self, request: Request, replica: Replica, refusal: RequestRefusedError) -> None:
        replica.observer.on_refused(request, str(refusal))
        self._arrivals.on_finish(request.request_id, request.arrival_time)
        request.forget_sequences()

    def _on_prompt(self, number: int, view: View) -> Callable[[Request, int], None]:
        def on_prompt(prompt: Request, now_ns: int) -> None:
            """The KV of a prompt is there: the request goes on, to the server that decodes it."""
            decoders = self._decoders
            assert decoders is not None
            view.forget(prompt)
            request, chosen = self._apart.pop(prompt.request_id)
            note_prompt(request, prompt)
            decoders.ports[chosen].expect(request, decoders.prefill_ports[number], prompt.sequences[0])
            due_ns = now_ns + decoders.request_ns
            heapq.heappush(self._handed_over, (due_ns, request.request_id, chosen, request))
            self._later(decoders.request_ns, lambda: self._deliver(due_ns))

        return on_prompt

    def _deliver(self, now_ns: int) -> None:
        """Those that are due go to their servers for decodes, in the order of their numbers."""
        while self._handed_over and self._handed_over[0][0] <= now_ns:
            _, _, chosen, request = heapq.heappop(self._handed_over)
            self._decode_desk.views[chosen].submit(request, now_ns)

    def _on_end(self, view: View) -> Callable[[Request, int], None]:
        arrivals = self._arrivals

        def on_end(request: Request, now_ns: int) -> None:
            view.forget(request)
            arrivals.on_finish(request.request_id, now_ns)
            if arrivals.next_ns < self.next_ns:
                self.next_ns = arrivals.next_ns
                self._on_earlier()

        return on_end
