"""What a server is put before: something that takes prompts and brings tokens, a real engine or a simulated one."""

from __future__ import annotations

import asyncio
from collections import abc
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from engine.api.outputs import FinishReason, TokenLogprobs
from engine.sampling_params import SamplingParams
from engine.server.tally import Tally

PromptInput = str | list[int]


class Delta(NamedTuple):
    """What a step added to one sequence of one prompt; `due_ns` is when it was meant to come, by `time.monotonic_ns`,
    where a simulation knows it."""

    prompt: int
    sequence: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    due_ns: int | None = None


class Opened(NamedTuple):
    """A call that the backend has taken: its prompts in tokens."""

    call: object
    prompts: list[list[int]]


Sent = tuple[int, int]
"""When the first and the last tokens of a prompt's sequences were sent, by `time.monotonic_ns`; 0 where none was."""


@dataclass(slots=True)
class Pace:
    """How many tokens of a sequence its client was sent, and when the first and last of them, by `time.monotonic_ns`.
    The first is not known where chunks were made ahead."""

    num_tokens: int = 0
    first_ns: int | None = None
    last_ns: int | None = None


class Line(Protocol):
    """Writes the chunks of a stream to its client without a turn of the event loop.

    Attributes:
        pace: of the first sequence; whoever calls `send` counts there.
        descriptor: of the socket, to which others may write while `is_free`; -1 where they may not.
    """

    pace: Pace
    descriptor: int

    def write(self, deltas: list[Delta]) -> bool:
        """Write deltas at once and count them; False where the client is slow or gone."""

    def make(self, text: str, token: int) -> bytes | None:
        """What `send` writes of the stream's next token, which does not end it; None where it cannot be made ahead."""

    def send(self, data: bytes) -> bool:
        """As `write`, of what `make` made, which is not counted. False also where other deltas wait to be written."""

    def is_free(self) -> bool:
        """Whether all before has been written, to a client that is there."""

    def finish(self, data: bytes) -> None:
        """Write the rest of what was written to `descriptor` in part, or not at all."""

    def begin(self, sent_ns: int) -> None:
        """Count that the first token of the stream was sent."""


@dataclass(slots=True)
class Channel:
    """What a call still has to be told; filled and emptied in the event loop. Deltas of a slow reader pile up here,
    at most as many as tokens were asked for.

    Attributes:
        received_ns: when the call came, by `time.monotonic_ns`.
        line: what it cannot write waits for `take`; None where there is none, or none yet.
        is_taken: what was taken last may wait for a slow reader.
    """

    received_ns: int = 0
    pending: list[Delta] = field(default_factory=list)
    error: Exception | None = None
    num_cached_tokens: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    is_closed: bool = False
    is_taken: bool = False
    line: Line | None = None

    def put(self, deltas: list[Delta]) -> None:
        if self.line is not None and not self.pending and self.line.write(deltas):
            if deltas[-1].finish_reason is not None:
                self._changed.set()  # the end of the answer is for who takes
            return
        self.pending += deltas
        self._changed.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self._changed.set()

    def close(self) -> None:
        """Nobody reads any more."""
        self.is_closed = True
        self._changed.set()

    async def take(self) -> list[Delta]:
        """What came since the last call, once there is any or a sequence has ended; nothing where the channel was
        closed.

        Raises:
            Exception: what the backend failed with.
        """
        if not (self.pending or self.error or self.is_closed):
            self._changed.clear()
            await self._changed.wait()
        if self.is_closed:
            return []
        if not self.pending and self.error:
            raise self.error
        pending, self.pending = self.pending, []
        return pending


class Backend(Protocol):
    """Serves calls; all methods are called in the event loop, and none of them waits for a step.

    Attributes:
        model_name: what it serves.
        max_model_len: most tokens of prompt and output.
        default_params: sampling parameters of a request that says nothing.
        tally: what it has done.
    """

    model_name: str
    max_model_len: int
    default_params: SamplingParams
    tally: Tally

    async def open(
        self,
        prompts: list[PromptInput],
        params: SamplingParams,
        channel: Channel,
        priority: int,
        session: int | None = None,
    ) -> Opened:
        """Queue prompts, whose outputs come through `channel`; `session` is the conversation that they belong to.

        Raises:
            ValueError: a prompt or a parameter cannot be used; none of the prompts is queued.
        """

    def abort(self, call: object) -> None:
        """Drop what of a call has not ended."""

    def note_sent(self, call: object, times_ns: list[Sent]) -> None:
        """The tokens of a stream were sent at these times, of each of its prompts."""

    def render(self, messages: list[abc.Mapping[str, object]], options: abc.Mapping[str, object]) -> list[int]:
        """The tokens of a conversation; raises ValueError."""

    def encode(self, text: str, *, adds_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: list[int]) -> str: ...

    async def reset_cache(self) -> bool:
        """Empty the prefix cache; False while anything runs."""

    def close(self) -> None: ...
