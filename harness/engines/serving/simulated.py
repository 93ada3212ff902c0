"""The simulator behind a server, in real time: the latencies are of the configured system, the words made up."""

from __future__ import annotations

import asyncio
import time
from collections import abc
from dataclasses import replace
from functools import partial
from typing import Any

from engine.api.prompts import check_token_ids
from engine.core.hashing import extend_hashes
from engine.core.plan import PlanStart, StepOutcome, StepPlan
from engine.core.routing.router import Router
from engine.core.sequence import Request
from engine.sampling_params import SamplingParams
from engine.server.backend import Channel, Opened, PromptInput, Sent
from engine.server.tally import Tally
from engine.server.words import WordTokenizer
from engine.server.writes import batched_writes
from harness.engines.serving.handing_out import Call, Calls, HandingOut
from harness.engines.serving.reception import Reception
from simulator.drivers.agenda import Agenda
from simulator.drivers.live import Live
from simulator.fleets.desk import Desk, View
from simulator.observer import Observer
from simulator.replica import Replica
from simulator.servers import make_replica
from simulator.system import System


class Observers:
    """Tells several observers of a server."""

    def __init__(self, observers: abc.Sequence[Observer]) -> None:
        self._observers = observers

    def on_refused(self, request: Request, reason: str) -> None:
        for each in self._observers:
            each.on_refused(request, reason)

    def on_transfers(self, plan: StepPlan, wait_ns: int) -> None:
        for each in self._observers:
            each.on_transfers(plan, wait_ns)

    def on_step(self, plan: StepPlan, start_ns: int, durations_ns: Any, start: PlanStart | None = None) -> None:
        for each in self._observers:
            each.on_step(plan, start_ns, durations_ns)

    def on_commit(self, outcome: StepOutcome) -> None:
        for each in self._observers:
            each.on_commit(outcome)


class SimulatedBackend:
    """Serves with a simulation of `systems`, servers behind a router of which each serves whole requests.

    Args:
        answer_tokens: of a request that sets no limit: the simulation does not know when a model would stop.
        rule: chooses the server of each call; None for one server.
        reading_s: every so many seconds the rule sees the servers' metrics anew; 0 where it always knows them.
        observers: of each server, told of its steps beside `tally`.
    """

    def __init__(
        self,
        systems: abc.Sequence[System],
        tally: Tally,
        *,
        model_name: str,
        answer_tokens: int,
        rule: Router | None = None,
        reading_s: float = 0.0,
        observers: abc.Sequence[Observer] = (),
    ) -> None:
        first = systems[0]
        self.model_name = model_name
        self.max_model_len = min(system.max_model_len for system in systems)
        self.default_params = SamplingParams()
        self.tally = tally
        self._systems = systems
        self._rule = rule
        self._reading_s = reading_s
        self._answer_tokens = answer_tokens
        self._observers = observers
        self._vocab_size = first.model.vocab_size
        self._block_size = first.block_size
        self._words = WordTokenizer(self._vocab_size)
        self._calls = Calls()
        self._num_requests = 0

    def start(self) -> None:
        self._writes = batched_writes()
        costs = {id(system): system.cost_model() for system in self._systems}
        self._agenda = Agenda(asyncio.get_running_loop())
        self._replicas: list[Replica] = []
        self._live: list[Live] = []
        for number, system in enumerate(self._systems):
            ahead = system.speculation is None
            own = HandingOut(self._calls, self._words, self._vocab_size, self.tally, self._writes, makes_ahead=ahead)
            observers = Observers([self.tally, *self._observers[number : number + 1], own])
            replica = make_replica(replace(system, compress=False), costs[id(system)], observers)
            self._replicas.append(replica)
            self._live.append(Live(replica, self._agenda, own))
        front_end = self._systems[0].front_end
        self._reception = front_end and Reception(front_end, len(self._live) * front_end.processes, self._agenda)
        self._desk = Desk(self._replicas, self._rule, time.monotonic_ns)
        for replica, view in zip(self._replicas, self._desk.views, strict=True):
            replica.on_finish = partial(_forget, view)
        self.tally.schedulers = lambda: [replica.scheduler for replica in self._replicas]
        self.tally.num_coming = self._num_coming
        if self._reading_s and len(self._replicas) > 1:
            self._read(self._desk)

    # -- what the server asks for ---------------------------------------------------------------------------------

    async def open(
        self,
        prompts: list[PromptInput],
        params: SamplingParams,
        channel: Channel,
        priority: int,
        session: int | None = None,
    ) -> Opened:
        read = [
            self._words.encode(each)
            if isinstance(each, str)
            else check_token_ids(each, self._vocab_size, f"prompts[{i}]")
            for i, each in enumerate(prompts)
        ]
        requests = [self._request(tokens, params, priority, session) for tokens in read]
        number = self._desk.choose(requests[0])
        view = self._desk.views[number]
        for request in requests:
            view.check(request)
        for request in requests:
            view.count(request)
        call = Call(channel, requests, number)
        self._calls.add(call)
        live = self._live[number]
        if self._reception is None:
            live.submit(requests, channel.received_ns)
        else:
            for request in requests:
                self._reception.enter(request, channel.received_ns, partial(live.submit, have_arrived=True))
        return Opened(call, read)

    def abort(self, call: object) -> None:
        assert isinstance(call, Call)
        for request in call.requests:
            if request.request_id in self._calls.of:
                self._calls.forget(request)
                if self._reception is None or not self._reception.withdraw(request):
                    self._replicas[call.server].withdraw(request)
                self._desk.views[call.server].forget(request)

    def note_sent(self, call: object, times_ns: list[Sent]) -> None:
        """What is recorded are the times of the simulation."""

    def render(self, messages: list[abc.Mapping[str, object]], options: abc.Mapping[str, object]) -> list[int]:
        return self._words.encode(self._words.apply_chat_template(messages))

    def encode(self, text: str, *, adds_special_tokens: bool) -> list[int]:
        return self._words.encode(text)

    def decode(self, token_ids: list[int]) -> str:
        return self._words.decode(token_ids)

    async def reset_cache(self) -> bool:
        if self._calls.of:
            return False
        self.close()
        self.start()
        return True

    def close(self) -> None:
        self._agenda.close()
        if self._writes is not None:
            self._writes.close()
        for live in self._live:
            live.close()

    def _num_coming(self) -> int:
        inside = 0 if self._reception is None else self._reception.num_inside
        return inside + sum(replica.num_waiting - replica.scheduler.num_waiting for replica in self._replicas)

    def _request(self, tokens: list[int], params: SamplingParams, priority: int, session: int | None) -> Request:
        hashes: list[int] = []
        extend_hashes(hashes, tokens, self._block_size, len(tokens) // self._block_size)
        number, self._num_requests = self._num_requests, self._num_requests + 1
        return Request(
            number,
            len(tokens),
            params.max_tokens or self._answer_tokens,
            block_hashes=hashes,
            priority=priority,
            num_sequences=params.n,
            session=session,
        )

    def _read(self, desk: Desk) -> None:
        """Let the rule see the metrics as they are now."""
        if desk is not self._desk or self._replicas[0].is_stopping:
            return
        for view in desk.views:
            view.read()
        asyncio.get_running_loop().call_later(self._reading_s, self._read, desk)


def _forget(view: View, request: Request, now_ns: int) -> None:
    view.forget(request)
