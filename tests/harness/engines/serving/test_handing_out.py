"""Chunks of a step on their way to the clients of a simulated server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from engine.server.tally import Tally
from engine.server.words import WordTokenizer
from engine.server.writes import Batch, Written
from harness.engines.serving.handing_out import Calls, HandingOut, _Made


def test_what_the_kernel_did_not_take_is_left_to_the_transport() -> None:
    """Of a client that reads slowly a part, of one that has gone nothing."""
    rest: list[bytes] = []
    line = SimpleNamespace(is_free=lambda: True, finish=rest.append)
    writes = SimpleNamespace(write=lambda batch: Written([4, 1, 0], [10, 20, 30]))
    own = HandingOut(Calls(), WordTokenizer(9), 9, Tally(), writes, makes_ahead=True)  # type: ignore[arg-type]
    streams: list[Any] = [SimpleNamespace(is_forgotten=False, line=line) for _ in range(3)]
    own._together = [_Made(None, each, line, b"abcd") for each in streams]  # type: ignore[arg-type]
    own._batch = Batch([0, 1, 2], [b"abcd"] * 3)
    own.send()
    assert rest == [b"bcd", b"abcd"]
    assert own._sent == streams and own._times == [10, 20, 30]


def test_a_client_that_goes_after_its_chunk_was_made_gets_no_write_to_its_descriptor() -> None:
    """It may be another client's by then."""
    batches: list[Batch] = []

    def write(batch: Batch) -> Written:
        batches.append(batch)
        return Written([1] * batch.number, [5] * batch.number)

    writes = SimpleNamespace(write=write)
    own = HandingOut(Calls(), WordTokenizer(9), 9, Tally(), writes, makes_ahead=True)  # type: ignore[arg-type]
    lines: list[Any] = [SimpleNamespace(is_free=lambda: True, send=lambda _: False, descriptor=i) for i in range(3)]
    streams: list[Any] = [SimpleNamespace(is_forgotten=False, line=line) for line in lines]
    own._made = [_Made(i, streams[i], lines[i], b"%d" % i) for i in range(3)]  # type: ignore[arg-type]
    own._put_together()
    lines[1].is_free = lambda: False
    own.send()
    assert [batch._writes["descriptor"].tolist() for batch in batches] == [[0, 2]]
    assert own._sent == [streams[0], streams[2]] and own._others == [1]
