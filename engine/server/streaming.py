"""Answers in OpenAI's form: whole documents, and chunks of a stream."""

from __future__ import annotations

import json
import time
import uuid
from collections import abc
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii
from typing import Any

from engine.api.outputs import TokenLogprobs
from engine.server.asking import Asked
from engine.server.backend import Channel, Delta, Opened, Pace, Sent
from engine.server.tally import Tally

DONE = b"data: [DONE]\n\n"
_UNENDED = '"logprobs":null,"finish_reason":null,"stop_reason":null'
_to_json = json.JSONEncoder(separators=(",", ":")).encode  # `json.dumps` would make an encoder for each chunk


@dataclass
class Choice:
    """A sequence, as far as it has come."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    pace: Pace = field(default_factory=Pace)

    def add(self, delta: Delta) -> None:
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason


class Answering:
    """The answer to one call, and what the server counts of it.

    Args:
        started_ns: when the call came, by `time.monotonic_ns`.

    Attributes:
        around: what is before and after the text in all chunks of the only sequence that do not end it; None where they
            differ in more.
    """

    def __init__(self, asked: Asked, opened: Opened, channel: Channel, model: str, tally: Tally, started_ns: int):
        self._asked = asked
        self._opened = opened
        self._channel = channel
        self._tally = tally
        self._started_ns = started_ns
        self._created = int(time.time())
        self._model = model
        self._id = f"{'chatcmpl' if asked.is_chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._kind = ("chat.completion" if asked.is_chat else "text_completion", ".chunk" if asked.is_chat else "")
        self._opening = f"data: {_to_json(self._head(self._kind[1]))[:-1]},"
        self._choices = [Choice() for _ in range(len(opened.prompts) * asked.params.n)]
        text, self._after = ('"delta":{"content":', "},") if asked.is_chat else ('"text":', ",")
        self._before = [f'{self._opening}"choices":[{{"index":{i},{text}' for i in range(len(self._choices))]
        self.around = self._around()
        self._num_prompt_tokens = sum(map(len, opened.prompts))
        self._has_begun = False

    @property
    def has_ended(self) -> bool:
        return all(choice.finish_reason is not None for choice in self._choices)

    @property
    def num_running(self) -> int:
        return sum(choice.finish_reason is None for choice in self._choices)

    @property
    def pace(self) -> Pace:
        """Of the first sequence."""
        return self._choices[0].pace

    def sent_ns(self) -> list[Sent]:
        """Of each prompt, as far as the stream has come."""
        size, paces = self._asked.params.n, [choice.pace for choice in self._choices]
        own = [paces[at : at + size] for at in range(0, len(paces), size)]
        return [(min(each.first_ns or 0 for each in some), max(each.last_ns or 0 for each in some)) for some in own]

    async def whole(self) -> dict[str, Any] | None:
        """The document, once all sequences have ended; None where the client has gone. Raises what the backend does."""
        while not self.has_ended:
            deltas = await self._channel.take()
            if not deltas:
                return None
            for delta in deltas:
                self._note(delta)
        choices = [self._choice(i, choice, "message") for i, choice in enumerate(self._choices)]
        return {**self._head(""), "choices": choices, "usage": self._usage()}

    def first(self) -> bytes:
        """What a stream of a chat begins with: whose turn it is."""
        if not self._asked.is_chat:
            return b""
        delta = {"role": "assistant", "content": ""}
        choices = [
            {"index": i, "delta": delta, "logprobs": None, "finish_reason": None} for i in range(len(self._choices))
        ]
        return self._chunk(choices)

    def chunks(self, deltas: abc.Sequence[Delta]) -> bytes:
        """The chunks of these deltas: one for each sequence that has grown."""
        if len(deltas) == 1 and deltas[0].finish_reason is None and self._asked.params.logprobs is None:
            return self._next_chunk(deltas[0])
        grown: dict[int, Choice] = {}
        for delta in deltas:
            grown.setdefault(self._note(delta), Choice()).add(delta)
        parts = [self._chunk([self._choice(i, new, "delta")]) for i, new in grown.items()]
        return b"".join(parts)

    def _next_chunk(self, delta: Delta) -> bytes:
        """The chunk of a delta that ends nothing, which nearly all are: put together without making its document."""
        index = self._note(delta)
        return self._plain(index, delta.text, delta.token_ids, self._num_tokens())

    def ahead(self, text: str, token: int) -> bytes | None:
        """The chunk of a token that is not due yet, and is not counted; None where other sequences or log-probabilities
        belong to it."""
        if len(self._choices) > 1 or self._asked.params.logprobs is not None:
            return None
        return self._plain(0, text, [token], self._num_tokens() + 1)

    def note_first(self, sent_ns: int) -> None:
        """Count that the first token was sent."""
        self._tally.times["ttft"].add((sent_ns - self._started_ns) * 1e-9)
        self._has_begun = True

    def _num_tokens(self) -> int:
        return sum([choice.pace.num_tokens for choice in self._choices])

    def _plain(self, index: int, text: str, token_ids: list[int], num_tokens: int) -> bytes:
        ids = f',"token_ids":{_to_json(token_ids)}' if self._asked.shows_ids else ""
        usage = f',"usage":{self._usage_text(num_tokens)}' if self._asked.shows_running_usage else ""
        return (
            f"{self._before[index]}{encode_basestring_ascii(text)}{self._after}{_UNENDED}{ids}}}]{usage}}}\n\n"
        ).encode()

    def _around(self) -> tuple[bytes, bytes] | None:
        asked = self._asked
        is_plain = not (asked.shows_ids or asked.shows_running_usage) and asked.params.logprobs is None
        if not is_plain or len(self._choices) > 1:
            return None
        return self._before[0].encode(), f"{self._after}{_UNENDED}}}]}}\n\n".encode()

    def last(self) -> bytes:
        """What a stream ends with."""
        return (self._chunk([], with_usage=True) if self._asked.shows_usage else b"") + DONE

    def _note(self, delta: Delta) -> int:
        """Add a delta to its sequence, whose number is returned, and count it."""
        index = delta.prompt * self._asked.params.n + delta.sequence
        choice, now_ns, number = self._choices[index], time.monotonic_ns(), len(delta.token_ids)
        if number:
            pace = choice.pace
            if pace.last_ns is None:
                pace.first_ns = now_ns
            else:
                self._tally.times["itl"].add((now_ns - pace.last_ns) * 1e-9 / number, number)
            pace.last_ns = now_ns
            pace.num_tokens += number
            if not self._has_begun:
                self.note_first(now_ns)
            self._tally.output_tokens += number
        if self._asked.stream:
            choice.finish_reason = delta.finish_reason
        else:
            choice.add(delta)
        if delta.finish_reason is not None:
            self._tally.ended[delta.finish_reason] += 1
            if self.has_ended:
                self._tally.times["e2el"].add((now_ns - self._started_ns) * 1e-9)
        return index

    def _head(self, suffix: str) -> dict[str, Any]:
        return {"id": self._id, "object": self._kind[0] + suffix, "created": self._created, "model": self._model}

    def _chunk(self, choices: list[dict[str, Any]], *, with_usage: bool = False) -> bytes:
        text = f'{self._opening}"choices":{_to_json(choices)}'
        if with_usage or self._asked.shows_running_usage:
            text += f',"usage":{self._usage_text(self._num_tokens())}'
        return f"{text}}}\n\n".encode()

    def _choice(self, index: int, choice: Choice, part: str) -> dict[str, Any]:
        logprobs = None
        found: dict[str, Any] = {"index": index}
        if self._asked.is_chat:
            content = {"content": choice.text}
            found[part] = {"role": "assistant", **content} if part == "message" else content
            if self._asked.params.logprobs is not None:
                logprobs = {"content": [_chat_logprobs(each, self._asked.params.logprobs) for each in choice.logprobs]}
        else:
            found["text"] = choice.text
            if self._asked.params.logprobs is not None:
                logprobs = _completion_logprobs(choice.logprobs)
        found |= {"logprobs": logprobs, "finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
        if self._asked.shows_ids:
            found["token_ids"] = choice.token_ids
        return found

    def _usage(self) -> dict[str, Any]:
        usage: dict[str, Any] = json.loads(self._usage_text(self._num_tokens()))
        return usage

    def _usage_text(self, num_output: int) -> str:
        num_prompt = self._num_prompt_tokens
        return (
            f'{{"prompt_tokens":{num_prompt},"completion_tokens":{num_output},"total_tokens":{num_prompt + num_output},'
            f'"prompt_tokens_details":{{"cached_tokens":{self._channel.num_cached_tokens}}}}}'
        )


def _completion_logprobs(logprobs: list[TokenLogprobs]) -> dict[str, Any]:
    chosen = [next(iter(each.items())) for each in logprobs]
    return {
        "tokens": [_token_text(token, each.decoded_token) for token, each in chosen],
        "token_logprobs": [each.logprob for _, each in chosen],
        "top_logprobs": [
            {_token_text(token, each.decoded_token): each.logprob for token, each in top.items()} for top in logprobs
        ],
        "text_offset": [],
    }


def _chat_logprobs(top: TokenLogprobs, count: int) -> dict[str, Any]:
    """The token that was sampled, and the `count` most likely ones."""
    found: list[dict[str, Any]] = [
        {"token": (text := _token_text(token, each.decoded_token)), "logprob": each.logprob, "bytes": [*text.encode()]}
        for token, each in top.items()
    ]
    likely = sorted(found, key=lambda each: -each["logprob"])
    return {**found[0], "top_logprobs": likely[:count]}


def _token_text(token: int, text: str | None) -> str:
    return f"token_id:{token}" if text is None else text
