"""The answer to one request, as its client sees it: which tokens came when, what the server counted, how it ended."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from simulator.quantities import MAX_TOKENS

_MOST_TOKENS = 1 << 20  # of an answer: a server that counts more is wrong
Status = Literal["finished", "rejected", "aborted"]


@dataclass
class Answer:
    """What came of a request. Times are in ns since the start of the run, None until it happens.

    Attributes:
        row: of the trace.
        issued_ns: when it was sent, or the connection for it begun; for a repeated attempt, the first time.
        is_issued: it was; until then `issued_ns` is when the client began to make it.
        num_tokens: output tokens of all its sequences.
        gaps: a gap between tokens in ns, and how many have it.
        error: kind of the failure, and what was said.
        num_prompt_tokens, num_cached_tokens: as the server counted them; None where it does not say.
        token_ids: of the first sequence, where the server sends them.
        num_shared: tokens that came in one chunk with an earlier one.
    """

    row: int
    arrival_ns: int
    issued_ns: int
    is_issued: bool = False
    first_ns: int | None = None
    last_ns: int | None = None
    num_tokens: int = 0
    gaps: list[tuple[float, int]] = field(default_factory=list)
    status: Status = "aborted"
    error: str | None = None
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    token_ids: list[int] = field(default_factory=list)
    num_shared: int = 0
    num_retries: int = 0


class StreamReader:
    """Reads the events of a streamed answer.

    How many tokens a chunk has, its running usage tells (`continuous_usage_stats` of vLLM), or else its token ids; a
    chunk that tells neither counts as one token if it has text. The final usage corrects the sum.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._rest = b""
        self._last_ns: dict[int, int] = {}  # of each choice
        self._usage_tokens = 0
        self.is_done = False
        self._ended: set[int] = set()  # choices with a finish reason

    @property
    def has_ended(self) -> bool:
        """Whether the answer came to its end."""
        return self.is_done or bool(self._ended)

    def feed(self, data: bytes, now_ns: int) -> None:
        """Bytes that came at `now_ns`.

        Raises:
            ServerSaidError: an event is an error.
            ValueError: an event is not JSON, or not of the form of OpenAI's.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                with _of_form():
                    self._event(line[5:].strip(), now_ns)

    def _event(self, text: bytes, now_ns: int) -> None:
        if text == b"[DONE]":
            self.is_done = True
            return
        event = json.loads(text)
        if event.get("error"):
            raise ServerSaidError(message_of(event))
        usage = event.get("usage")
        choices = event.get("choices") or ()
        if not choices and usage:
            note_usage(self._answer, usage)
            return
        for choice in choices:
            if choice.get("finish_reason"):
                self._ended.add(choice.get("index", 0))
            count = self._count(choice, usage if len(choices) == 1 else None)
            if count > 0:
                self._tokens(choice.get("index", 0), count, now_ns)

    def _count(self, choice: Mapping[str, Any], usage: Mapping[str, Any] | None) -> int:
        ids = choice.get("token_ids")
        if ids:
            self._answer.token_ids += [_whole(each) for each in ids] if choice.get("index", 0) == 0 else ()
        if usage and "completion_tokens" in usage:
            before, self._usage_tokens = self._usage_tokens, _whole(usage["completion_tokens"], _MOST_TOKENS)
            return self._usage_tokens - before
        return len(ids) if ids else int(has_text(choice))

    def _tokens(self, index: int, count: int, now_ns: int) -> None:
        answer = self._answer
        answer.num_tokens += count
        answer.last_ns = now_ns
        if answer.first_ns is None:
            answer.first_ns = now_ns
        last = self._last_ns.get(index)
        self._last_ns[index] = now_ns
        # Of several tokens in the chunk that comes first, nobody knows when the later ones were made.
        answer.num_shared += count - 1
        if last is not None:
            answer.gaps.append(((now_ns - last) / count, count))


class ServerSaidError(Exception):
    """The server answered with an error."""


def read_whole(answer: Answer, document: Mapping[str, Any], now_ns: int) -> None:
    """An answer in one piece: nothing is known about its first token; raises ValueError if it is of another form."""
    answer.last_ns = now_ns
    with _of_form():
        for choice in document.get("choices") or ():
            answer.num_tokens += int(has_text(choice))
        note_usage(answer, document.get("usage") or {})


def note_usage(answer: Answer, usage: Mapping[str, Any]) -> None:
    """Take over what the server counted."""
    if (prompt := usage.get("prompt_tokens")) is not None:
        answer.num_prompt_tokens = _whole(prompt)
    answer.num_tokens = _whole(usage.get("completion_tokens") or 0, _MOST_TOKENS) or answer.num_tokens
    if (cached := (usage.get("prompt_tokens_details") or {}).get("cached_tokens")) is not None:
        answer.num_cached_tokens = _whole(cached)


def _whole(value: Any, most: int = MAX_TOKENS) -> int:
    """A number that a server counted; raises ValueError if it is none."""
    if not isinstance(value, int | float) or not 0 <= value <= most or value != int(value):
        raise ValueError(f"{reprlib.repr(value)} is no number of tokens")
    return int(value)


@contextmanager
def _of_form() -> Iterator[None]:
    """Raise ValueError where an answer has something else than OpenAI's form has in a place."""
    try:
        yield
    except (AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"not of OpenAI's form ({error})") from None


def has_text(choice: Mapping[str, Any]) -> bool:
    """Whether a choice of a chunk brings any text, reasoning and calls of tools included."""
    part = choice.get("delta") or choice.get("message") or choice
    return any(part.get(name) for name in ("text", "content", "reasoning_content", "reasoning", "tool_calls"))


def message_of(document: Any) -> str:
    """What an error of OpenAI's form says, in one line; or the document itself."""
    error = document.get("error", document) if isinstance(document, dict) else document
    said = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(said).split())[:300]
