"""Batches of writes to sockets, by the kernel itself."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator

import pytest

from engine.server.writes import Batch, BatchedWrites, batched_writes


@pytest.fixture
def writes() -> Iterator[BatchedWrites]:
    found = batched_writes()
    if found is None:
        pytest.skip("no io_submit here")
    yield found
    found.close()


def pairs(number: int) -> list[tuple[socket.socket, socket.socket]]:
    found = [socket.socketpair() for _ in range(number)]
    for ours, _ in found:
        ours.setblocking(False)
    return found


@pytest.mark.parametrize("number", [1, 16, 17, 500])
def test_each_socket_gets_its_chunk_and_is_told_when(number: int, writes: BatchedWrites) -> None:
    clients = pairs(number)
    for word in (b"first", b"second"):
        chunks = [word * (1 + i % 3) + b"%d" % i for i in range(number)]
        batch, started_ns = Batch([ours.fileno() for ours, _ in clients], chunks), time.monotonic_ns()
        written = writes.write(batch)
        assert written.counts == [len(chunk) for chunk in chunks]
        assert started_ns <= min(written.times_ns) and max(written.times_ns) <= time.monotonic_ns()
        assert [theirs.recv(100) for _, theirs in clients] == chunks
    for each in clients:
        for end in each:
            end.close()


def test_slow_and_gone_clients_are_told_apart_from_the_rest(writes: BatchedWrites) -> None:
    clients = pairs(60)
    clients[20][1].close()
    with pytest.raises(BlockingIOError):
        while True:
            clients[33][0].send(b"x" * 4096)
    descriptors = [ours.fileno() for ours, _ in clients]
    clients[41][0].close()
    chunks = [b"%d" % i for i in range(60)]
    written = writes.write(Batch(descriptors, chunks))
    wrong = {i for i, count in enumerate(written.counts) if count != len(chunks[i])}
    assert {20, 33, 41} <= wrong
    assert all(written.counts[i] == 0 for i in wrong) and wrong <= {20, 33, *range(41, 48)}, (
        "a call ends at a descriptor of nothing"
    )
    for i in set(range(60)) - wrong:
        assert clients[i][1].recv(100) == chunks[i]
    for each in clients:
        for end in each:
            end.close()


def test_systems_without_such_calls_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert batched_writes() is None
