"""The simulator behind a server, in real time: the latencies are of the configured system, the words made up."""

from __future__ import annotations

import asyncio
import time
from collections import abc
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from engine.api.outputs import FinishReason
from engine.api.prompts import check_token_ids
from engine.core.hashing import extend_hashes
from engine.core.plan import PlanStart, StepOutcome, StepPlan
from engine.core.sequence import Request, Sequence, SequenceStatus
from engine.sampling_params import SamplingParams
from engine.server.backend import Channel, Delta, Line, Opened, PromptInput
from engine.server.tally import Tally
from engine.server.words import WordTokenizer
from simulator.drivers.live import Live
from simulator.replica import Observer
from simulator.servers import make_replica
from simulator.system import System

_PRIME = 7919  # between the made-up tokens of a sequence


@dataclass(eq=False)
class _Call:
    channel: Channel
    requests: list[Request]


@dataclass(eq=False, slots=True)
class _Stream:
    """A sequence of a call, and how many of its tokens were handed out."""

    channel: Channel
    prompt: int
    number: int
    first_token: int
    num_sent: int = 0


class _Made(NamedTuple):
    """The chunk of a token that is due when the step under way ends; with it, `stream` has `num_tokens` tokens."""

    sequence: Sequence
    stream: _Stream
    line: Line
    data: bytes
    num_tokens: int


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
    """Serves with a simulation of `system`.

    Args:
        answer_tokens: of a request that sets no limit: the simulation does not know when a model would stop.
        observers: are told of the steps, beside `tally`.
    """

    def __init__(
        self,
        system: System,
        tally: Tally,
        *,
        model_name: str,
        answer_tokens: int,
        observers: abc.Sequence[Observer] = (),
    ) -> None:
        system = replace(system, compress=False)
        self.model_name = model_name
        self.max_model_len = system.max_model_len
        self.default_params = SamplingParams()
        self.tally = tally
        self._system = system
        self._answer_tokens = answer_tokens
        self._observers = observers
        self._words = WordTokenizer(system.model.vocab_size)
        self._vocab_size = system.model.vocab_size
        self._calls: dict[int, tuple[_Call, int]] = {}  # by the id of each unfinished request, and its place
        self._streams: dict[Sequence, _Stream] = {}  # that have begun
        self._touched: list[Sequence] = []
        self._made: list[_Made] = []
        self._end_ns = 0
        self._num_requests = 0

    def start(self) -> None:
        observers = Observers([self.tally, *self._observers, self])
        replica = self._replica = make_replica(self._system, self._system.cost_model(), observers)
        self.tally.scheduler = lambda: replica.scheduler
        self._live = Live(replica, asyncio.get_running_loop(), self._make_ahead)

    # -- what the server asks for ---------------------------------------------------------------------------------

    async def open(self, prompts: list[PromptInput], params: SamplingParams, channel: Channel, priority: int) -> Opened:
        read = [
            self._words.encode(each)
            if isinstance(each, str)
            else check_token_ids(each, self._vocab_size, f"prompts[{i}]")
            for i, each in enumerate(prompts)
        ]
        requests = [self._request(tokens, params, priority) for tokens in read]
        for request in requests:
            self._replica.scheduler.check(request)
        call = _Call(channel, requests)
        for place, request in enumerate(requests):
            self._calls[request.request_id] = call, place
        self._live.submit(requests, channel.received_ns)
        return Opened(call, read)

    def abort(self, call: object) -> None:
        assert isinstance(call, _Call)
        for request in call.requests:
            if request.request_id in self._calls:
                self._forget(request)
                self._replica.withdraw(request)

    def render(self, messages: list[abc.Mapping[str, object]], options: abc.Mapping[str, object]) -> list[int]:
        return self._words.encode(self._words.apply_chat_template(messages))

    def encode(self, text: str, *, adds_special_tokens: bool) -> list[int]:
        return self._words.encode(text)

    def decode(self, token_ids: list[int]) -> str:
        return self._words.decode(token_ids)

    async def reset_cache(self) -> bool:
        if self._calls:
            return False
        self.start()
        return True

    def close(self) -> None:
        self._replica.is_stopping = True

    def _request(self, tokens: list[int], params: SamplingParams, priority: int) -> Request:
        self._num_requests += 1
        hashes: list[int] = []
        size = self._system.block_size
        extend_hashes(hashes, tokens, size, len(tokens) // size)
        return Request(
            self._num_requests,
            len(tokens),
            params.max_tokens or self._answer_tokens,
            block_hashes=hashes,
            priority=priority,
            num_sequences=params.n,
        )

    def _forget(self, request: Request) -> None:
        self._calls.pop(request.request_id, None)
        for sequence in request.sequences:
            self._streams.pop(sequence, None)

    # -- what the simulation tells --------------------------------------------------------------------------------

    def on_refused(self, request: Request, reason: str) -> None: ...

    def on_transfers(self, plan: StepPlan, wait_ns: int) -> None: ...

    def on_step(self, plan: StepPlan, start_ns: int, durations_ns: Any, start: PlanStart | None = None) -> None:
        """Note who gets tokens, as long as the plan's decodes are known."""
        self._end_ns = start_ns + int(durations_ns if isinstance(durations_ns, int) else durations_ns.sum())
        firsts = [sequence for chunk in plan.prefills if chunk.is_last for sequence in chunk.sequence.request.sequences]
        self._touched = [*firsts, *plan.decodes]

    def on_commit(self, outcome: StepOutcome) -> None:
        # the forks of a request exist from the commit of its prompt on
        sent = self._send_made()
        touched = {each: None for sequence in self._touched for each in sequence.request.sequences}
        for sequence in touched:
            if sequence not in sent and sequence.request_id in self._calls:
                self._hand_out(sequence)
        for request in outcome.finished:
            self._forget(request)
        self._touched = []

    def _hand_out(self, sequence: Sequence) -> None:
        stream = self._streams.get(sequence) or self._begin(sequence)
        sent, count = stream.num_sent, sequence.num_output_tokens
        if count == sent:
            return
        reason: FinishReason | None = "length" if sequence.status is SequenceStatus.FINISHED else None
        stream.channel.put([self._delta(stream, count)._replace(finish_reason=reason, due_ns=self._end_ns)])
        stream.num_sent = count

    def _delta(self, stream: _Stream, count: int) -> Delta:
        """The tokens of a stream from those that were handed out to the first `count`."""
        tokens = [(stream.first_token + _PRIME * at) % self._vocab_size for at in range(stream.num_sent, count)]
        return Delta(stream.prompt, stream.number, self._words.decode(tokens), tokens)

    def _make_ahead(self, plan: StepPlan) -> None:
        """Make the chunks that the decodes of a plan will bring, while its time passes."""
        self._made = []
        if self._system.speculation is not None:  # nobody knows how many tokens a step brings
            return
        for sequence in plan.decodes:
            stream = self._streams.get(sequence)
            if stream is None or (line := stream.channel.line) is None:
                continue
            count = stream.num_sent + 1
            if count < sequence.request.max_tokens and (data := line.make(self._delta(stream, count))) is not None:
                self._made.append(_Made(sequence, stream, line, data, count))

    def _send_made(self) -> set[Sequence]:
        """Send the chunks that were made ahead; returns the sequences whose chunks were sent."""
        sent: list[_Made] = []
        times: list[int] = []
        clock = time.monotonic_ns
        for made in self._made:
            sequence, stream, line, data, num_tokens = made
            if sequence.num_output_tokens == num_tokens and not stream.channel.pending and line.send(data):
                times.append(clock())
                sent.append(made)
        self._made = []
        for made in sent:
            made.stream.num_sent = made.num_tokens
        gaps = [made.line.count_sent(sent_ns) for made, sent_ns in zip(sent, times, strict=True)]
        self.tally.times["itl"].add_all(gaps)
        self.tally.lateness.add_all([(each - self._end_ns) * 1e-9 for each in times])
        self.tally.output_tokens += len(sent)
        return {made.sequence for made in sent}

    def _begin(self, sequence: Sequence) -> _Stream:
        request = sequence.request
        call, place = self._calls[request.request_id]
        number = request.sequences.index(sequence)
        if number == 0:
            call.channel.num_cached_tokens += request.num_cached_tokens
        stream = _Stream(call.channel, place, number, request.request_id * 31 + number)
        self._streams[sequence] = stream
        return stream
