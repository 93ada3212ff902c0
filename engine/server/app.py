"""The routes of the server."""

from __future__ import annotations

import asyncio
import json
import time
from collections import abc
from json.encoder import encode_basestring_ascii
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.server.asking import Asked, BadRequestError, read_chat, read_completion, session_of
from engine.server.backend import Backend, Channel, Delta, Opened
from engine.server.streaming import Answering

_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_DISCONNECTED = 499  # of nginx: the client has gone
_CONNECTION = "twinserve.connection"  # in a scope: what uvicorn sends an answer with
RECEIVED = "twinserve.received_ns"  # in a scope: when the call came, where the server in front says it


def make_app(backend: Backend, max_waiting: int | None = None) -> ASGIApp:
    """The server before `backend`; requests beyond `max_waiting` that wait for their turn are refused with 503."""
    server = _Server(backend, max_waiting)
    app = Starlette(
        routes=[
            Route("/v1/completions", server.completions, methods=["POST"]),
            Route("/v1/chat/completions", server.chat, methods=["POST"]),
            Route("/v1/models", server.models),
            Route("/health", server.health),
            Route("/metrics", server.metrics),
            Route("/tokenize", server.tokenize, methods=["POST"]),
            Route("/detokenize", server.detokenize, methods=["POST"]),
            Route("/reset_prefix_cache", server.reset_prefix_cache, methods=["POST"]),
        ],
        exception_handlers={404: _not_found, 405: _not_found, BadRequestError: _bad_request, Exception: _failed},
    )

    async def told_of_connection(scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault(RECEIVED, time.monotonic_ns())
        scope[_CONNECTION] = getattr(send, "__self__", None)  # of uvicorn; others have none
        await app(scope, receive, send)

    return told_of_connection


class _Server:
    def __init__(self, backend: Backend, max_waiting: int | None) -> None:
        self._backend = backend
        self._max_waiting = max_waiting

    async def completions(self, request: Request) -> Response:
        return await self._answer(request, read_completion)

    async def chat(self, request: Request) -> Response:
        return await self._answer(request, read_chat)

    async def models(self, request: Request) -> Response:
        backend = self._backend
        card = {"id": backend.model_name, "object": "model", "created": 0, "owned_by": "twinserve"}
        return JSONResponse({"object": "list", "data": [{**card, "max_model_len": backend.max_model_len}]})

    async def health(self, request: Request) -> Response:
        return Response()

    async def metrics(self, request: Request) -> Response:
        text = self._backend.tally.text(self._backend.model_name)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def tokenize(self, request: Request) -> Response:
        body = await _body(request)
        adds = bool(body.get("add_special_tokens", True))
        if not isinstance(prompt := body.get("prompt"), str):
            raise BadRequestError("prompt: must be a text")
        tokens = self._backend.encode(prompt, adds_special_tokens=adds)
        return JSONResponse({"tokens": tokens, "count": len(tokens), "max_model_len": self._backend.max_model_len})

    async def detokenize(self, request: Request) -> Response:
        tokens = (await _body(request)).get("tokens")
        if not isinstance(tokens, list) or any(type(each) is not int or each < 0 for each in tokens):
            raise BadRequestError("tokens: must be a list of token ids")
        return JSONResponse({"prompt": self._backend.decode(tokens)})

    async def reset_prefix_cache(self, request: Request) -> Response:
        return Response(status_code=200 if await self._backend.reset_cache() else 409)

    async def _answer(self, request: Request, read: abc.Callable[[Any, Backend], Asked]) -> Response:
        started_ns, backend = time.monotonic_ns(), self._backend
        asked = read(body := await _body(request), backend)
        if self._max_waiting is not None and backend.tally.num_waiting >= self._max_waiting:
            raise BadRequestError("The engine is currently overloaded", status=503, kind="overloaded_error")
        channel = Channel(request.scope[RECEIVED])
        try:
            session = session_of(request.headers.get("x-session-id"), body)
            opened = await backend.open(asked.prompts, asked.params, channel, asked.priority, session)
        except ValueError as error:
            raise BadRequestError(str(error)) from None
        answering = Answering(asked, opened, channel, backend.model_name, backend.tally, started_ns)
        call = _Call(backend, answering, channel, opened)
        return _Stream(call) if asked.stream else await call.whole(request)


class _Call:
    """A call that is under way; it is aborted when its client goes."""

    def __init__(self, backend: Backend, answering: Answering, channel: Channel, opened: Opened) -> None:
        self._backend = backend
        self.answering = answering
        self.channel = channel
        self._opened = opened

    async def whole(self, request: Request) -> Response:
        watch = asyncio.create_task(self.close_on_disconnect(request.receive))
        try:
            document = await self.answering.whole()
        finally:
            watch.cancel()
            self.end()
        return Response(status_code=_DISCONNECTED) if document is None else JSONResponse(document)

    async def close_on_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.channel.close()

    def end(self) -> None:
        """Drop what is left of the call."""
        if left := self.answering.num_running:
            self._backend.tally.ended["abort"] += left
            self._backend.abort(self._opened.call)

    def note_sent(self) -> None:
        """The stream has ended."""
        self._backend.note_sent(self._opened.call, self.answering.sent_ns())

    def note_written(self, due_ns: int | None) -> None:
        if due_ns is not None:
            self._backend.tally.lateness.add((time.monotonic_ns() - due_ns) * 1e-9)


class _Stream(Response):
    """The answer as server-sent events. A slow reader holds up its own writing only: what comes meanwhile is written
    in one piece when it reads again.

    Each piece costs several coroutines on its way through the server's interface. Where the server is uvicorn's, pieces
    are written to its transport as soon as they come, unless the reader is slow.
    """

    def __init__(self, call: _Call) -> None:
        super().__init__()
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call, answering = self._call, self._call.answering
        watch = asyncio.create_task(call.close_on_disconnect(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            if first := answering.first():
                await send(_piece(first))
            call.channel.line = self._line(scope[_CONNECTION])
            while not answering.has_ended:
                deltas = await call.channel.take()
                if call.channel.is_closed:
                    return
                if deltas:
                    call.channel.is_taken = True
                    await send(_piece(answering.chunks(deltas)))
                    call.channel.is_taken = False
                    call.note_written(deltas[-1].due_ns)
            await send(_piece(answering.last()))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except Exception as error:  # of the engine: the status is sent, so only the stream can say it
            document = {"error": {"message": str(error), "type": "InternalServerError", "code": 500}}
            await send(_piece(b"data: " + json.dumps(document).encode() + b"\n\n"))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            watch.cancel()
            call.note_sent()
            call.end()

    def _line(self, connection: Any) -> _Line | None:
        """To the transport of uvicorn; None for another server, whose connections are not known."""
        return _Line(self._call, connection) if getattr(connection, "chunked_encoding", False) else None


class _Line:
    """Chunks of a stream on their way to the transport of uvicorn."""

    __slots__ = ("_around", "_call", "_channel", "_flow", "_transport", "_write", "descriptor", "pace")  # many by turns

    def __init__(self, call: _Call, connection: Any) -> None:
        self._call = call
        self._channel = call.channel
        self._around = call.answering.around
        self._flow = connection.flow
        transport = self._transport = connection.transport
        self._write = transport.write
        socket, encrypts = map(transport.get_extra_info, ("socket", "sslcontext"))
        self.descriptor: int = -1 if socket is None or encrypts else socket.fileno()
        self.pace = call.answering.pace

    def write(self, deltas: list[Delta]) -> bool:
        if self._channel.is_taken or self._channel.is_closed or self._flow.write_paused:
            return False
        self._write(_framed(self._call.answering.chunks(deltas)))
        self._call.note_written(deltas[-1].due_ns)
        return True

    def make(self, text: str, token: int) -> bytes | None:
        if self._around is not None:
            before, after = self._around
            return _framed(b"%b%b%b" % (before, encode_basestring_ascii(text).encode(), after))
        data = self._call.answering.ahead(text, token)
        return None if data is None else _framed(data)

    def send(self, data: bytes) -> bool:
        channel = self._channel
        if channel.pending or channel.is_taken or channel.is_closed or self._flow.write_paused:
            return False
        self._write(data)
        return True

    def is_free(self) -> bool:
        channel, transport = self._channel, self._transport
        holds = channel.pending or channel.is_taken or channel.is_closed
        return not (holds or transport.is_closing() or transport.get_write_buffer_size())

    def finish(self, data: bytes) -> None:
        self._write(data)

    def begin(self, sent_ns: int) -> None:
        self._call.answering.note_first(sent_ns)


def _framed(data: bytes) -> bytes:
    """A chunk of HTTP."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _piece(data: bytes) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": True}


async def _body(request: Request) -> Any:
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadRequestError("the body must be a JSON object")
    return body


def _error(status: int, kind: str, message: str) -> Response:
    headers = {"retry-after": "1"} if status == 503 else None
    text = message.encode(errors="replace").decode()  # what it quotes may be half of a surrogate pair
    document = {"error": {"message": text, "type": kind, "param": None, "code": status}}
    return JSONResponse(document, status, headers)


async def _bad_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, BadRequestError)
    return _error(error.status, error.kind, str(error))


async def _not_found(request: Request, error: Exception) -> Response:
    return _error(getattr(error, "status_code", 404), "NotFoundError", f"no such address: {request.url.path}")


async def _failed(request: Request, error: Exception) -> Response:
    return _error(500, "InternalServerError", " ".join(str(error).split()) or type(error).__name__)
