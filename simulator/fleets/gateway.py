"""The entry of a fleet: fetches requests from the arrivals when they are due, and chooses the servers of each.

Where prompts and decodes have servers of their own, it chooses one of each when a request arrives, as llm-d does.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.core.routing.router import Router
from engine.core.sequence import Request, RequestRefusedError
from simulator.arrivals import NEVER, Arrivals, Source
from simulator.fleets.desk import Desk, Server, View
from simulator.fleets.handover import Port, note_prompt, prompt_of
from simulator.replica import Replica
from simulator.versions.front_end import SecondFrontEnd

MakeRequest = Callable[[int, int], Request]
"""Makes the request of a row of the trace, given the row and its intended arrival in ns; the row is its id."""

Later = Callable[[int, Callable[[], None]], None]


class Decoders(NamedTuple):
    """The servers that decode what others have prefilled, and their way to the network.

    Attributes:
        prefill_ports, ports: of the servers for prompts, and of these.
        rule: chooses the server; None for one.
        local_tokens: a prompt with at most so many tokens that its server for decodes has not seen is computed there.
        request_ns: from the end of a prompt until the request is in the queue of the other server.
        front_end: that it passes before it is there; None for none.
    """

    replicas: Sequence[Replica]
    prefill_ports: Sequence[Port]
    ports: Sequence[Port]
    rule: Router | None
    local_tokens: int = 0
    request_ns: int = 0
    front_end: SecondFrontEnd | None = None


class Gateway(Source):
    """Sends requests to `replicas`; who runs it calls `dispatch` at `next_ns`, and not before.

    Args:
        replicas: for all of a request or, with `decoders`, for its prompt.
        rule: chooses among several servers; None for one.
        clock: the time, for views that depend on it.
        decoders: for the rest of a request.
        later: calls a function so many ns later, before anybody arrives.

    Attributes:
        on_left: told of each request that has ended, and on which server.
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
        decoders: Decoders | None = None,
        later: Later = lambda delay_ns, then: then(),
    ) -> None:
        super().__init__()
        self.on_left: Callable[[int, Request], None] | None = None
        self._arrivals = arrivals
        self._make_request = make_request
        self._desk = Desk(replicas, rule, clock)
        self._held: list[Request] = []  # that came while no server took requests
        self._apart: dict[int, tuple[Request, int]] = {}  # whose prompt is computed elsewhere, and who will decode it
        for number, (replica, view) in enumerate(zip(replicas, self._desk.views, strict=True)):
            replica.on_finish = (
                self._on_end(view, number) if decoders is None else self._on_prompt(number, view, replica)
            )
        self._decoders = decoders
        self._later = later
        self._handed_over: list[tuple[int, int, int, Request]] = []  # a heap by the time when they are due
        self._passing: dict[int, tuple[Request, int]] = {}  # the front end of the servers for decodes, by request
        self._pass_ns = NEVER  # when that is looked at next
        if decoders is not None:
            local = decoders.local_tokens > 0
            self._decode_desk = Desk(decoders.replicas, decoders.rule, clock, keeps_prefixes=local)
            for replica, view in zip(decoders.replicas, self._decode_desk.views, strict=True):
                replica.on_finish = self._on_end(view, NEVER)
        self.next_ns = arrivals.next_ns

    def watch_steps(self) -> None:
        """Let what is read of servers be what they sent with the outputs of their last step."""
        for view in self._desk.views + (self._decode_desk.views if self._decoders else []):
            view.watch_steps()

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

    @property
    def views(self) -> list[View]:
        """The servers that requests come to first."""
        return self._desk.views

    @property
    def open_views(self) -> list[View]:
        return [self._desk.views[number] for number in self._desk.open]

    @property
    def is_over(self) -> bool:
        """Whether all requests have ended."""
        views = self._desk.views
        return self.next_ns == NEVER and not self._held and not any(view.num_requests for view in views)

    def open(self, numbers: list[int], now_ns: int) -> None:
        """These servers take requests from now on; those that no server took come to them."""
        self._desk.open = numbers
        if numbers:
            held, self._held = self._held, []
            for request in held:
                self._send(request, self._desk, now_ns)

    def fail(self, number: int, lost: Sequence[Request], now_ns: int, *, retries: bool) -> None:
        """A server has died with these requests, which begin anew elsewhere, or have ended."""
        self._desk.views[number].reset()
        for request in lost:
            if retries:
                again = self._make_request(request.request_id, request.arrival_time)
                self._send(again, self._desk, now_ns)
            else:
                self._arrivals.on_finish(request.request_id, now_ns)
        self._look_for_earlier()

    def give_up(self, now_ns: int) -> list[Request]:
        """The requests that no server took end, as none will come back."""
        held, self._held = self._held, []
        for request in held:
            self._arrivals.on_finish(request.request_id, now_ns)
        self._look_for_earlier()
        return held

    def _send(self, request: Request, desk: Desk, now_ns: int, number: int | None = None) -> None:
        if not desk.open:
            self._held.append(request)
            return
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

    def _refuse(self, request: Request, replica: Server, refusal: RequestRefusedError) -> None:
        replica.observer.on_refused(request, str(refusal))
        self._arrivals.on_finish(request.request_id, request.arrival_time)
        request.forget_sequences()

    def _on_prompt(self, number: int, view: View, replica: Replica) -> Callable[[Request, int], None]:
        def on_prompt(prompt: Request, now_ns: int) -> None:
            """The KV of a prompt is there: the request goes on, to the server that decodes it."""
            decoders = self._decoders
            assert decoders is not None
            view.forget(prompt)
            request, chosen = self._apart.pop(prompt.request_id)
            note_prompt(request, prompt)
            began_ns, origin = now_ns - replica.last_step_ns, decoders.prefill_ports[number]
            decoders.ports[chosen].expect(request, origin, prompt.sequences[0], began_ns, now_ns)
            due_ns = now_ns + decoders.request_ns
            if decoders.front_end is not None:
                self._passing[request.request_id] = request, chosen
                decoders.front_end.enter(request.request_id, due_ns)
                self._expect_passing(decoders.front_end, now_ns)
                return
            heapq.heappush(self._handed_over, (due_ns, request.request_id, chosen, request))
            self._later(decoders.request_ns, lambda: self._deliver(due_ns))

        return on_prompt

    def _deliver(self, now_ns: int) -> None:
        """Those that are due go to their servers for decodes, in the order of their numbers."""
        while self._handed_over and self._handed_over[0][0] <= now_ns:
            _, _, chosen, request = heapq.heappop(self._handed_over)
            self._decode_desk.views[chosen].submit(request, now_ns)

    def _expect_passing(self, front_end: SecondFrontEnd, now_ns: int) -> None:
        due_ns = front_end.next_ns
        if due_ns < self._pass_ns:
            self._pass_ns = due_ns
            self._later(due_ns - now_ns, lambda: self._pass(front_end, due_ns))

    def _pass(self, front_end: SecondFrontEnd, now_ns: int) -> None:
        """Those that have passed the front end come to their servers for decodes."""
        if now_ns != self._pass_ns:
            return  # there was an earlier call, which has looked ahead
        self._pass_ns = NEVER
        for row in front_end.pop_due(now_ns):
            request, chosen = self._passing.pop(row)
            self._decode_desk.views[chosen].submit(request, now_ns)
        self._expect_passing(front_end, now_ns)

    def _on_end(self, view: View, number: int) -> Callable[[Request, int], None]:
        def on_end(request: Request, now_ns: int) -> None:
            view.forget(request)
            self._arrivals.on_finish(request.request_id, now_ns)
            self._look_for_earlier()
            if self.on_left is not None:
                self.on_left(number, request)

        return on_end

    def _look_for_earlier(self) -> None:
        self.next_ns = min(self.next_ns, self._arrivals.next_ns)
