"""A server of which each answer is what a test says."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

Answer = Callable[[web.Request, dict[str, Any]], Any]


class Fake:
    """Keeps the bodies and the headers that it got."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.address = ""


@contextmanager
def fake_server(answer: Answer) -> Iterator[Fake]:
    """Runs in a thread. `answer` is a coroutine function; what it returns is the response."""
    fake, loop, ready = Fake(), asyncio.new_event_loop(), threading.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read() or b"{}")
        fake.bodies.append(body)
        fake.headers.append(dict(request.headers))
        response: web.StreamResponse = await answer(request, body)
        return response

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "fake"}]})

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/v1/models", models)
        app.router.add_post("/{path:.*}", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        fake.address = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
        ready.set()
        return runner

    def run() -> None:
        runner = loop.run_until_complete(start())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait(20)
    try:
        yield fake
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


async def tokens(request: web.Request, count: int, *, every_s: float = 0.0, ends: bool = True) -> web.StreamResponse:
    """A stream of so many tokens."""
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for number in range(count):
        reason = "length" if ends and number == count - 1 else None
        event = {"choices": [{"index": 0, "text": " a", "finish_reason": reason}]}
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await asyncio.sleep(every_s)
    if ends:
        await response.write(b"data: [DONE]\n\n")
    return response
