"""What a simulated server tells its clients: the tokens of each step, as words that are made up."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from engine.api.outputs import FinishReason
from engine.core.plan import PlanStart, StepOutcome, StepPlan
from engine.core.sequence import Request, Sequence, SequenceStatus
from engine.server.backend import Channel, Delta, Line
from engine.server.tally import Tally
from engine.server.words import WordTokenizer

_PRIME = 7919  # between the made-up tokens of a sequence


@dataclass(eq=False)
class Call:
    """What a client asked for, and the number of the server that does it."""

    channel: Channel
    requests: list[Request]
    server: int


@dataclass(eq=False, slots=True)
class Stream:
    """A sequence of a call, and how many of its tokens were handed out."""

    channel: Channel
    prompt: int
    number: int
    first_token: int
    num_sent: int = 0


@dataclass
class Calls:
    """The calls that are under way on all servers.

    Attributes:
        of: by the id of each unfinished request, and its place in the call.
        streams: of the sequences that have begun.
    """

    of: dict[int, tuple[Call, int]] = field(default_factory=dict)
    streams: dict[Sequence, Stream] = field(default_factory=dict)

    def add(self, call: Call) -> None:
        for place, request in enumerate(call.requests):
            self.of[request.request_id] = call, place

    def begin(self, sequence: Sequence) -> Stream:
        request = sequence.request
        call, place = self.of[request.request_id]
        number = request.sequences.index(sequence)
        if number == 0:
            call.channel.num_cached_tokens += request.num_cached_tokens
        stream = self.streams[sequence] = Stream(call.channel, place, number, request.request_id * 31 + number)
        return stream

    def forget(self, request: Request) -> None:
        self.of.pop(request.request_id, None)
        for sequence in request.sequences:
            self.streams.pop(sequence, None)


_Made = tuple[Sequence, Stream, Line, bytes, int]
"""The chunk of a token that is due when the step under way ends; with it, the stream has so many tokens."""


class HandingOut:
    """Observes a simulated server, and hands the tokens of its steps to `calls`.

    Args:
        makes_ahead: whether each decode of a step brings one token, whose chunk can be made while the step runs.
    """

    def __init__(self, calls: Calls, words: WordTokenizer, vocab_size: int, tally: Tally, *, makes_ahead: bool) -> None:
        self._calls = calls
        self._words = words
        self._vocab_size = vocab_size
        self._tally = tally
        self._makes_ahead = makes_ahead
        self._touched: list[Sequence] = []
        self._made: list[_Made] = []
        self._end_ns = 0

    def on_begun(self, plan: StepPlan) -> None:
        """Make the chunks that the decodes of a plan will bring, while its time passes."""
        self._made = []
        if not self._makes_ahead:
            return
        streams, word, size, made = self._calls.streams, self._words.word, self._vocab_size, self._made
        for sequence in plan.decodes:
            stream = streams.get(sequence)
            if stream is None or (line := stream.channel.line) is None:
                continue
            token = (stream.first_token + _PRIME * stream.num_sent) % size
            num_tokens = stream.num_sent + 1
            if num_tokens < sequence.request.max_tokens and (data := line.make(word(token), token)) is not None:
                made.append((sequence, stream, line, data, num_tokens))

    def on_refused(self, request: Request, reason: str) -> None: ...

    def on_transfers(self, plan: StepPlan, wait_ns: int) -> None: ...

    def on_step(self, plan: StepPlan, start_ns: int, durations_ns: Any, start: PlanStart | None = None) -> None:
        """Note who gets tokens, as long as the plan's decodes are known."""
        self._end_ns = start_ns + int(durations_ns if isinstance(durations_ns, int) else durations_ns.sum())
        firsts = [sequence for chunk in plan.prefills if chunk.is_last for sequence in chunk.sequence.request.sequences]
        self._touched = [*firsts, *plan.decodes]

    def on_commit(self, outcome: StepOutcome) -> None:
        sent = self._send_made()
        # the forks of a request exist from the commit of its prompt on
        touched = {each: None for sequence in self._touched for each in sequence.request.sequences}
        for sequence in touched:
            if sequence not in sent and sequence.request_id in self._calls.of:
                self._hand_out(sequence)
        for request in outcome.finished:
            self._calls.forget(request)
        self._touched = []

    def _send_made(self) -> set[Sequence]:
        """Send the chunks that were made ahead, and count them when all are sent; returns whose they were."""
        sent: list[_Made] = []
        times: list[int] = []
        clock = time.monotonic_ns
        for made in self._made:
            sequence, stream, line, data, num_tokens = made
            if sequence.num_output_tokens == num_tokens and not stream.channel.pending and line.send(data):
                times.append(clock())
                sent.append(made)
        self._made = []
        gaps: list[float] = []
        for (_, stream, line, _, num_tokens), sent_ns in zip(sent, times, strict=True):
            stream.num_sent = num_tokens
            gaps.append(line.count_sent(sent_ns))
        self._tally.times["itl"].add_all(gaps)
        self._tally.lateness.add_all([(each - self._end_ns) * 1e-9 for each in times])
        self._tally.output_tokens += len(sent)
        return {made[0] for made in sent}

    def _hand_out(self, sequence: Sequence) -> None:
        stream = self._calls.streams.get(sequence) or self._calls.begin(sequence)
        sent, count = stream.num_sent, sequence.num_output_tokens
        if count == sent:
            return
        tokens = [(stream.first_token + _PRIME * at) % self._vocab_size for at in range(sent, count)]
        stream.num_sent = count
        reason: FinishReason | None = "length" if sequence.status is SequenceStatus.FINISHED else None
        text = self._words.decode(tokens)
        stream.channel.put([Delta(stream.prompt, stream.number, text, tokens, None, reason, None, self._end_ns)])
