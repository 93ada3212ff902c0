"""A router before real servers with OpenAI's API, which chooses by the rules of simulated fleets.

    client ──▶ router ──▶ the server that the rule chose, and its stream back as it comes

What a rule sees of a server: the requests and prompts that this router has sent it, which are exact; queue, batch and
free blocks, as its /metrics said when they were last read; cached prefixes, as estimated from what it was sent.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import abc
from contextlib import suppress
from itertools import count
from typing import Any
from zlib import crc32

import aiohttp
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from engine.core.hashing import extend_hashes
from engine.core.routing.router import Router
from engine.core.routing.views.loads import UncachedPrompts
from engine.core.routing.views.prefix_estimate import PrefixEstimate
from engine.core.sequence import Request
from engine.server.asking import session_of
from harness.engines.endpoint.server_metrics import Reading, parse

_BLOCK_SIZE = 16
_BLOCKS = 16_384  # of a server's cache, until its metrics tell
_CHARACTERS = 4  # of a text, to a token
_READING_S = 0.1
_DOWN_S = 2.0  # for which a server that refused a connection is not chosen
_KEPT = ("content-type", "cache-control", "retry-after")


class ServerState:
    """A server as the rule sees it."""

    def __init__(self, address: str, number: int) -> None:
        self.number = number
        self.address = address.rstrip("/").removesuffix("/v1")
        self.num_requests = 0
        self.num_tokens = 0
        self.num_sent = 0
        self.uncached = UncachedPrompts()  # an answer that begins is the first token
        self.down_until = 0.0
        self._reading = Reading(0, {})
        self._estimate = PrefixEstimate(_BLOCKS)

    @property
    def num_uncached_tokens(self) -> int:
        return self.uncached.num_tokens

    @property
    def num_waiting(self) -> int:
        return round(self._reading.values.get("waiting", 0))

    @property
    def num_running(self) -> int:
        return round(self._reading.values.get("running", 0))

    @property
    def num_blocks(self) -> int:
        return self._reading.num_blocks or _BLOCKS

    @property
    def num_free_blocks(self) -> int:
        return round((1 - self._reading.values.get("usage", 0.0)) * self.num_blocks)

    def prefix_hits(self, request: Request) -> int:
        return self._estimate.num_hits(*_hashes(request)) * _BLOCK_SIZE

    def cached_tokens(self, request: Request) -> tuple[int, int]:
        raise NotImplementedError("a server tells nobody what it has cached")

    def read(self, text: str) -> None:
        self._reading = parse(text, time.monotonic_ns())

    def count(self, request: Request) -> None:
        self.num_requests += 1
        self.num_sent += 1
        self.num_tokens += request.num_prompt_tokens
        self.uncached.count(request, self.prefix_hits(request))
        self._estimate.add(*_hashes(request))

    def forget(self, request: Request) -> None:
        self.num_requests -= 1
        self.num_tokens -= request.num_prompt_tokens
        self.uncached.settle(request)


class RouterServer:
    """Sends each call on to one of `addresses`, chosen by `rule`; `start` is called in the server's event loop."""

    def __init__(self, addresses: abc.Sequence[str], rule: Router, reading_s: float) -> None:
        self.servers = [ServerState(each, number) for number, each in enumerate(addresses)]
        self._rule = rule
        self._reading_s = reading_s or _READING_S
        self._numbers = count()

    def app(self) -> Starlette:
        """The routes of the router."""
        return Starlette(
            routes=[
                Route("/v1/completions", self._send_on, methods=["POST"]),
                Route("/v1/chat/completions", self._send_on, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/health", self._health),
                Route("/metrics", self._metrics),
            ]
        )

    def start(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None), read_bufsize=1 << 20
        )
        self._reading = asyncio.create_task(self._read_metrics())

    async def close(self) -> None:
        self._reading.cancel()
        await self._session.close()

    def choose(self, request: Request) -> ServerState | None:
        """The server of a request, among those that are up; None if none is."""
        up = [each for each in self.servers if each.down_until <= time.monotonic()]
        return up[self._rule.choose(request, up)] if up else None

    async def _send_on(self, http: HttpRequest) -> Response:
        data = await http.body()
        try:
            request = _request(next(self._numbers), json.loads(data), http.headers.get("x-session-id"))
        except (ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            return _error(400, f"the body cannot be read: {error}")
        headers = {key: http.headers[key] for key in ("authorization", "content-type") if key in http.headers}
        while (server := self.choose(request)) is not None:
            server.count(request)
            try:
                answer = await self._session.post(server.address + http.url.path, data=data, headers=headers)
            except (aiohttp.ClientError, OSError):  # nothing has reached it: another one may do it
                server.forget(request)
                server.down_until = time.monotonic() + _DOWN_S
                continue
            except BaseException:
                server.forget(request)
                raise
            kept = {name: answer.headers[name] for name in _KEPT if name in answer.headers}
            return StreamingResponse(self._pass_on(answer, server, request), answer.status, kept)
        return _error(503, "no server can be reached")

    async def _pass_on(
        self, answer: aiohttp.ClientResponse, server: ServerState, request: Request
    ) -> abc.AsyncIterator[bytes]:
        """What the server sends; where the client goes, the connection to the server is closed, too."""
        try:
            async for data in answer.content.iter_any():
                server.uncached.settle(request)
                yield data
        finally:
            answer.close()
            server.forget(request)

    async def _models(self, http: HttpRequest) -> Response:
        for server in self.servers:
            with suppress(aiohttp.ClientError, OSError):
                async with self._session.get(f"{server.address}/v1/models") as answer:
                    return Response(await answer.read(), answer.status, media_type="application/json")
        return _error(503, "no server can be reached")

    async def _health(self, http: HttpRequest) -> Response:
        return Response(status_code=200 if any(each.down_until <= time.monotonic() for each in self.servers) else 503)

    async def _metrics(self, http: HttpRequest) -> Response:
        """How many requests each server was sent, and has now."""
        lines = []
        for each in self.servers:
            lines.append(f'twinserve:router_requests_total{{server="{each.address}"}} {each.num_sent}')
            lines.append(f'twinserve:router_requests_running{{server="{each.address}"}} {each.num_requests}')
        return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")

    async def _read_metrics(self) -> None:
        while True:
            await asyncio.gather(*map(self._read, self.servers))
            await asyncio.sleep(self._reading_s)

    async def _read(self, server: ServerState) -> None:
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            timeout = aiohttp.ClientTimeout(total=2)
            async with self._session.get(f"{server.address}/metrics", timeout=timeout) as answer:
                if answer.status == 200:
                    server.read(await answer.text(errors="replace"))


def _request(number: int, body: abc.Mapping[str, Any], session: str | None) -> Request:
    """What rules know of a call: lengths, identities of the blocks of its prompt, and its conversation."""
    prompt = body.get("prompt", body.get("messages"))
    tokens = prompt if isinstance(prompt, list) and prompt and type(prompt[0]) is int else _pieces(prompt)
    hashes: list[int] = []
    extend_hashes(hashes, tokens, _BLOCK_SIZE, len(tokens) // _BLOCK_SIZE)
    return Request(
        number,
        max(1, len(tokens)),
        int(body.get("max_tokens") or body.get("max_completion_tokens") or 1),
        block_hashes=hashes,
        session=session_of(session, body),
    )


def _pieces(prompt: Any) -> list[int]:
    """In place of the tokens of a text, or of messages: a number for each few characters."""
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True)
    return [crc32(text[at : at + _CHARACTERS].encode()) >> 1 for at in range(0, len(text), _CHARACTERS)]


def _hashes(request: Request) -> tuple[list[int], int]:
    """The hashes of a request's blocks, and how many there are."""
    hashes = request.sequences[0].block_hashes or []
    return hashes, len(hashes)


def _error(status: int, message: str) -> Response:
    kind = "invalid_request_error" if status < 500 else "ServiceUnavailableError"
    return JSONResponse({"error": {"message": message, "type": kind, "param": None, "code": status}}, status)
