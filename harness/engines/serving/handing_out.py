"""What a simulated server tells its clients: the tokens of each step, as words that are made up."""

from __future__ import annotations

import time
from collections import abc
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from engine.api.outputs import FinishReason
from engine.core.plan import PlanStart, StepOutcome, StepPlan
from engine.core.sequence import Request, Sequence, SequenceStatus
from engine.server.backend import Channel, Delta, Line
from engine.server.tally import Tally
from engine.server.words import WordTokenizer
from engine.server.writes import Batch, BatchedWrites
from simulator.drivers.moving import MovingMean

_PRIME = 7919  # between the made-up tokens of a sequence


@dataclass(eq=False)
class Call:
    """What a client asked for, and the number of the server that does it."""

    channel: Channel
    requests: list[Request]
    server: int


@dataclass(eq=False, slots=True)
class Stream:
    """A sequence of a call.

    Attributes:
        max_tokens: so many it has in the end.
        num_sent: so many of these were handed out.
        line: of the channel, once chunks were made ahead for it.
        is_forgotten: nobody waits for more.
    """

    channel: Channel
    prompt: int
    number: int
    first_token: int
    max_tokens: int
    num_sent: int = 0
    line: Line | None = None
    is_forgotten: bool = False


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
        stream = self.streams[sequence] = Stream(
            call.channel, place, number, request.request_id * 31 + number, request.max_tokens
        )
        return stream

    def forget(self, request: Request) -> None:
        self.of.pop(request.request_id, None)
        for sequence in request.sequences:
            if (stream := self.streams.pop(sequence, None)) is not None:
                stream.is_forgotten = True


_FEWEST = 16  # chunks that are worth a batch


class _Made(NamedTuple):
    """The chunk of a token that is due when the step under way ends."""

    sequence: Sequence
    stream: Stream
    line: Line
    data: bytes

    def is_free(self) -> bool:
        return not self.stream.is_forgotten and self.line.is_free()


class HandingOut:
    """Observes a simulated server, and hands the tokens of its steps to `calls`.

    Args:
        makes_ahead: whether each decode of a step brings one token, whose chunk can be made while the step runs.
        writes: sends the chunks of many streams; None where the system has no such calls.
    """

    def __init__(
        self,
        calls: Calls,
        words: WordTokenizer,
        vocab_size: int,
        tally: Tally,
        writes: BatchedWrites | None,
        *,
        makes_ahead: bool,
    ) -> None:
        self._calls = calls
        self._words = words
        self._vocab_size = vocab_size
        self._tally = tally
        self._makes_ahead = makes_ahead
        self._forking: list[Request] = []  # whose prompts end: the sequences are known when the step has ended
        self._others: list[Sequence] = []  # whose chunks are made then
        self._writes = writes
        self._made: list[_Made] = []
        self._together: list[_Made] = []  # those in the batch
        self._batch: Batch | None = None
        self._sent: list[Stream] = []
        self._times: list[int] = []  # when each of `_sent` was
        self._due_ns = 0
        self._send_ns = MovingMean()  # that a send takes

    def prepare(self, plan: StepPlan, due_ns: int) -> int:
        """Make the chunks of the tokens that a plan will bring, while its time passes; returns how long `send` will
        take."""
        self._due_ns = due_ns
        self._made, self._together, self._others = [], [], []
        ended = [chunk.sequence for chunk in plan.prefills if chunk.is_last]
        self._forking = [each.request for each in ended if each.request.num_sequences > 1]
        self._make([each for each in ended if each.request.num_sequences == 1])
        if self._makes_ahead:
            self._make(plan.decodes)
        else:
            self._others += plan.decodes
        number = len(self._made)
        if self._writes is not None and number >= _FEWEST:
            self._put_together()
        return round(max(self._send_ns.mean, 1) * number)

    def _put_together(self) -> None:
        """Make a batch of the chunks whose clients have read all before."""
        free, others = list[_Made](), list[_Made]()
        for each in self._made:
            (free if each.line.descriptor >= 0 and each.is_free() else others).append(each)
        self._together, self._made = free, others
        self._batch = Batch([each.line.descriptor for each in free], [each.data for each in free])

    def _make(self, sequences: abc.Iterable[Sequence]) -> None:
        """Make the next chunk of each sequence, where that can be done before it is due."""
        made, calls, word, size = self._made, self._calls, self._words.word, self._vocab_size
        for sequence in sequences:
            stream = calls.streams.get(sequence)
            if stream is None:
                if sequence.request_id not in calls.of:
                    continue
                stream = calls.begin(sequence)
            line, data, num_sent = stream.line or stream.channel.line, None, stream.num_sent
            if line is not None and num_sent + 1 < stream.max_tokens:
                token = (stream.first_token + _PRIME * num_sent) % size
                data = line.make(word(token), token)
            if line is None or data is None:
                self._others.append(sequence)
            else:
                stream.line = line
                made.append(_Made(sequence, stream, line, data))

    def send(self) -> None:
        """Send the chunks that were made ahead; they are counted when clients wait for nothing."""
        started_ns, number = time.monotonic_ns(), len(self._together) + len(self._made)
        if not all([each.is_free() for each in self._together]):  # the descriptor may be another client's by now
            self._made += self._together
            self._put_together()
        if self._together:
            self._send_batch()
        for each in self._made:
            if each.stream.is_forgotten:
                continue
            if each.line.send(each.data):
                self._times.append(time.monotonic_ns())
                self._sent.append(each.stream)
            else:
                self._others.append(each.sequence)
        if self._sent:
            self._send_ns.add((max(self._times) - started_ns) / number)
        self._made, self._together = [], []

    def _send_batch(self) -> None:
        assert self._writes is not None and self._batch is not None
        written = self._writes.write(self._batch)
        for each, count in zip(self._together, written.counts, strict=True):
            if count < len(each.data):
                each.line.finish(each.data[count:])
        self._sent += [each.stream for each in self._together]
        self._times += written.times_ns

    def _count_sent(self) -> None:
        sent, times = self._sent, self._times
        self._sent, self._times = [], []
        gaps: list[float] = []
        for stream, sent_ns in zip(sent, times, strict=True):
            stream.num_sent += 1
            assert stream.line is not None
            pace = stream.line.pace
            if pace.last_ns is None:
                stream.line.begin(sent_ns)
            else:
                gaps.append((sent_ns - pace.last_ns) * 1e-9)
            pace.last_ns = sent_ns
            pace.num_tokens += 1
        self._tally.times["itl"].add_all(gaps)
        self._tally.lateness.add_all([(each - self._due_ns) * 1e-9 for each in times])
        self._tally.output_tokens += len(sent)

    def on_refused(self, request: Request, reason: str) -> None: ...

    def on_transfers(self, plan: StepPlan, wait_ns: int) -> None: ...

    def on_step(self, plan: StepPlan, start_ns: int, durations_ns: Any, start: PlanStart | None = None) -> None: ...

    def on_commit(self, outcome: StepOutcome) -> None:
        self._count_sent()
        forks = [each for request in self._forking for each in request.sequences]
        for sequence in dict.fromkeys([*forks, *self._others]):
            if sequence.request_id in self._calls.of:
                self._hand_out(sequence)
        for request in outcome.finished:
            self._calls.forget(request)

    def _hand_out(self, sequence: Sequence) -> None:
        stream = self._calls.streams.get(sequence) or self._calls.begin(sequence)  # a fork
        sent, count = stream.num_sent, sequence.num_output_tokens
        if count == sent:
            return
        tokens = [(stream.first_token + _PRIME * at) % self._vocab_size for at in range(sent, count)]
        stream.num_sent = count
        reason: FinishReason | None = "length" if sequence.status is SequenceStatus.FINISHED else None
        text = self._words.decode(tokens)
        stream.channel.put([Delta(stream.prompt, stream.number, text, tokens, None, reason, None, self._due_ns)])
