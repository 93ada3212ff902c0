"""Chunks of a stream: the same bytes on the short way as on the long one, and in order on the way to the client."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from engine.sampling_params import SamplingParams
from engine.server import app
from engine.server.asking import Asked
from engine.server.backend import Channel, Delta, Opened, Sent
from engine.server.streaming import DONE, Answering
from engine.server.tally import Tally

flags = st.booleans()


def answering(channel: Channel, *, chat: bool = False, usage: bool = False, ids: bool = False, n: int = 1) -> Answering:
    asked = Asked(chat, [[1, 2]], SamplingParams(n=n), True, usage, usage, ids, 0)
    return Answering(asked, Opened(None, [[1, 2]]), channel, "m", Tally(), 0)


@given(text=st.text(), index=st.integers(0, 1), chat=flags, usage=flags, ids=flags)
def test_the_chunk_of_one_delta_has_the_bytes_of_its_document(
    text: str, index: int, chat: bool, usage: bool, ids: bool
) -> None:
    delta = Delta(0, index, text, [3, 4])
    short, long = (answering(Channel(), chat=chat, usage=usage, ids=ids, n=2) for _ in range(2))
    long._id, long._created, long._opening = short._id, short._created, short._opening
    assert short.chunks([delta]) == long.chunks([delta, Delta(0, index, "", [])])


@given(texts=st.lists(st.text(), min_size=3, max_size=3), chat=flags, usage=flags, ids=flags)
def test_a_chunk_that_is_made_ahead_has_the_bytes_and_counts_of_one_that_is_not(
    texts: list[str], chat: bool, usage: bool, ids: bool
) -> None:
    early, late = (answering(Channel(), chat=chat, usage=usage, ids=ids) for _ in range(2))
    late._id, late._created, late._before = early._id, early._created, early._before
    first, *others = [Delta(0, 0, text, [number]) for number, text in enumerate(texts)]
    assert early.chunks([first]) == late.chunks([first])
    line = line_of(early)
    for delta in others:
        assert line.make(delta.text, delta.token_ids[0]) == app._framed(late.chunks([delta]))
        line.pace.num_tokens += 1
    assert early._usage() == late._usage()
    assert line_of(answering(Channel(), n=2)).make("x", 1) is None


def line_of(answering: Answering) -> app._Line:
    call = app._Call(Backend(), answering, answering._channel, Opened(None, [[1]]))  # type: ignore[arg-type]
    return app._Line(call, Connection())


@dataclass
class Transport:
    written: list[bytes] = field(default_factory=list)

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def get_extra_info(self, name: str) -> None:
        """It has no socket."""


@dataclass
class Flow:
    write_paused: bool = False


class Connection:
    """What uvicorn sends with: a paused flow holds up `send` until it goes on."""

    chunked_encoding = True
    disconnected = False

    def __init__(self) -> None:
        self.transport, self.flow, self.goes_on = Transport(), Flow(), asyncio.Event()

    async def send(self, message: Any) -> None:
        while self.flow.write_paused:
            await self.goes_on.wait()
            await asyncio.sleep(0)  # others have their turn before the one that waited
        self.transport.write(message.get("body", b""))

    async def receive(self) -> Any:
        await asyncio.Event().wait()


class Backend:
    tally = Tally()

    def abort(self, call: object) -> None:
        raise AssertionError("nothing is aborted")

    def note_sent(self, call: object, times_ns: list[Sent]) -> None: ...


@pytest.mark.parametrize("pauses", [False, True], ids=["fast", "slow reader"])
def test_tokens_reach_the_client_in_order_whoever_writes_them(pauses: bool) -> None:
    async def serve() -> bytes:
        channel, connection = Channel(), Connection()
        call = app._Call(Backend(), answering(channel), channel, Opened(None, [[1]]))  # type: ignore[arg-type]
        scope = {"type": "http", app._CONNECTION: connection}
        task = asyncio.create_task(app._Stream(call)(scope, connection.receive, connection.send))
        await asyncio.sleep(0)
        for number in range(8):
            if pauses and number in (2, 4):
                connection.flow.write_paused = number == 2
                if number == 4:
                    connection.goes_on.set()
            reason = "length" if number == 7 else None
            channel.put([Delta(0, 0, f" {number}", [number], finish_reason=reason)])  # type: ignore[arg-type]
            if number in (3, 6):
                await asyncio.sleep(0)
            if number == 1:
                direct = len(connection.transport.written)
                assert (direct > 1) and not channel.pending, "written at once"
        await asyncio.wait_for(task, 5)
        return b"".join(connection.transport.written)

    text = asyncio.run(serve())
    said = b"".join(re.findall(rb'"text":"([^"]*)"', text))
    assert said == b" 0 1 2 3 4 5 6 7" and DONE in text


def test_what_is_no_server_of_uvicorn_gets_all_through_its_own_interface() -> None:
    stream = app._Stream(None)  # type: ignore[arg-type]
    assert stream._line(None) is None and stream._line(Request({"type": "http"})) is None
