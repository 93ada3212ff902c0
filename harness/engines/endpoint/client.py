"""Sends requests to an OpenAI-compatible server, and reads the streams of its answers."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NamedTuple

import aiohttp

from engine.core.sequence import Request
from harness.config.schema.endpoint import OpenAIEngine
from harness.engines.endpoint.answers import Answer, ServerSaidError, StreamReader, message_of, read_whole
from harness.errors import ConfigError, EngineError

_IDLE_S = 4
_RETRY_S = 0.5  # before the first repeated attempt; doubles with each
_RESETS = ("/reset_prefix_cache", "/flush_cache")  # of vLLM and of SGLang
_BUSY = (429, 502, 503, 504)  # worth another attempt


class Message(NamedTuple):
    """A request as it is sent."""

    path: str
    body: bytes


class Client:
    """One server. `start` is called in the event loop that sends, and `close` at the end.

    A key is taken from the environment at the start, and only ever sent to the server.
    """

    def __init__(self, settings: OpenAIEngine, now_ns: Callable[[], int]) -> None:
        self._settings = settings
        self._now_ns = now_ns
        self._key = os.environ.get(settings.key_variable, "")
        self.root = settings.endpoint.rstrip("/").removesuffix("/v1")
        self.model = settings.model or ""

    async def start(self) -> None:
        """Connect, and ask for the name of the model.

        Raises:
            ConfigError: nothing answers there, or no model is served.
        """
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._session = aiohttp.ClientSession(
            # An open loop waits for no connection. Servers close idle ones, uvicorn after 5 s: not while one is taken.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S),
            timeout=aiohttp.ClientTimeout(total=self._settings.timeout_s),
            headers=headers,
            read_bufsize=1 << 20,
            trace_configs=[self._tracing()],
        )
        if self.model:
            return
        try:
            models = await self.get_json("/v1/models")
            self.model = models["data"][0]["id"]
            if not isinstance(self.model, str):
                raise TypeError("a name is text")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ConfigError(f"engine.endpoint={self.root}: {self.hidden(_reason(error))}") from None
        except (LookupError, TypeError, ValueError, RecursionError):
            raise ConfigError(f"engine.endpoint={self.root}: tells no model at /v1/models; give engine.model") from None

    def _tracing(self) -> aiohttp.TraceConfig:
        """Notes when a request leaves: what this process takes to make it is no time of the server."""

        async def note(session: aiohttp.ClientSession, context: SimpleNamespace, event: Any) -> None:
            answer = context.trace_request_ctx
            if isinstance(answer, Answer) and not answer.is_issued:
                answer.issued_ns, answer.is_issued = self._now_ns(), True

        tracing = aiohttp.TraceConfig()
        tracing.on_connection_create_start.append(note)
        tracing.on_request_chunk_sent.append(note)
        return tracing

    async def close(self) -> None:
        await self._session.close()

    async def get_json(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The answer to a GET, or to a POST of `body`."""
        method = "GET" if body is None else "POST"
        async with self._session.request(method, self.root + path, json=body, raise_for_status=True) as response:
            return await response.json(content_type=None)

    async def text(self, url: str) -> str:
        """What a GET of an address answers; raises aiohttp.ClientError."""
        async with self._session.get(url, raise_for_status=True) as response:
            return await response.text(errors="replace")

    async def reset_cache(self) -> None:
        """Empty the prefix cache of the server.

        Raises:
            EngineError: it cannot be asked to.
        """
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            for path in _RESETS:
                async with self._session.post(self.root + path) as response:
                    if response.status == 200:
                        return
        raise EngineError(f"engine.reset_cache=true: the server resets none at {' or '.join(_RESETS)}")

    def message(self, request: Request, prompt: list[int] | str) -> Message:
        path, body = self._body(request, prompt)
        return Message(path, json.dumps(body).encode())

    async def ask(self, message: Message, answer: Answer) -> None:
        """Send a request and note in `answer` what comes back; never raises but when it is cancelled."""
        for attempt in range(self._settings.retries + 1):
            if attempt:
                await asyncio.sleep(_RETRY_S * 2 ** (attempt - 1))
                answer.num_retries += 1
            if not await self._attempt(message, answer):
                return

    async def _attempt(self, message: Message, answer: Answer) -> bool:
        """One attempt; returns whether another one may do better: nothing has come of this one."""
        answer.status, answer.error = "aborted", None
        may_repeat = False
        try:
            async with self._session.post(
                self.root + message.path,
                data=message.body,
                headers={"Content-Type": "application/json"},
                trace_request_ctx=answer,
            ) as response:
                if response.status != 200:
                    answer.error = f"http_{response.status}: {await self._said(response)}"
                    answer.status = "rejected" if response.status < 500 else "aborted"
                    return response.status in _BUSY
                await self._read(response, answer)
        except TimeoutError:
            answer.error = f"timeout: no end within {self._settings.timeout_s:g} s"
        except ServerSaidError as error:
            answer.error = f"stream_error: {error}"
        except (aiohttp.ClientError, OSError) as error:
            kind = "connect" if isinstance(error, aiohttp.ClientConnectorError) else "disconnected"
            answer.error = f"{kind}: {_reason(error)}"
            may_repeat = answer.first_ns is None
        except (ValueError, RecursionError) as error:
            answer.error = f"unreadable: {error}"
        if answer.error is not None:
            answer.error = self.hidden(answer.error)
        return may_repeat

    async def _read(self, response: aiohttp.ClientResponse, answer: Answer) -> None:
        if not response.content_type.endswith("event-stream"):
            read_whole(answer, await response.json(content_type=None), self._now_ns())
            answer.status = "finished"
            return
        reader = StreamReader(answer)
        async for data in response.content.iter_any():
            reader.feed(data, self._now_ns())
        if reader.has_ended:
            answer.status = "finished"
        else:
            answer.error = "cut_off: the stream ended without its last chunk"

    async def _said(self, response: aiohttp.ClientResponse) -> str:
        text = await response.text(errors="replace")
        try:
            return self.hidden(message_of(json.loads(text)))
        except (ValueError, RecursionError):
            return self.hidden(message_of(text))

    def hidden(self, text: str) -> str:
        """`text` without the key, which servers may repeat in errors."""
        return text.replace(self._key, "<key>") if self._key else text

    def _body(self, request: Request, prompt: list[int] | str) -> tuple[str, dict[str, Any]]:
        settings = self._settings
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.max_tokens,
            "temperature": settings.temperature,
            "stream": settings.stream,
        }
        if request.num_sequences > 1:
            body["n"] = request.num_sequences
        if request.priority:
            body["priority"] = request.priority
        if settings.ignore_eos:
            body["ignore_eos"] = True
        if settings.stream and settings.usage != "none":
            body["stream_options"] = {"include_usage": True}
            if settings.usage == "chunks":
                body["stream_options"]["continuous_usage_stats"] = True
        if request.session is not None and settings.api == "completions":
            body["return_token_ids"] = True  # of vLLM: the next turn of the session begins with them
        body |= settings.body
        if settings.api == "chat":
            return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": prompt}]}
        return "/v1/completions", {**body, "prompt": prompt}


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
