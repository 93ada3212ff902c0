"""Servers in a thread, and the little that a client needs to talk to one."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from queue import Queue
from typing import Any

from harness.engines.serving.serve import serve
from tests.harness.builders import SMALLEST, config

REAL = (*SMALLEST, "block_size=4", "max_num_seqs=16", "max_num_batched_tokens=64", "num_blocks=400")
SIMULATED = ("engine=sim", "model=qwen3-0.6b", "trace=synthetic")


class Server:
    """A server that runs; `address` is where."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.port = int(address.rpartition(":")[2])

    def open(self, path: str, body: dict[str, Any] | None = None) -> HTTPConnection:
        """A connection whose request is sent."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
        return connection

    def ask(self, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        """Status and document of an answer."""
        connection = self.open(path, body)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, json.loads(text) if text.startswith(("{", "[")) else text

    def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The events of a streamed answer; the last must be [DONE]."""
        status, text = self.ask(path, {**body, "stream": True})
        assert status == 200, text
        events = [line.removeprefix("data: ") for line in text.splitlines() if line]
        assert events.pop() == "[DONE]"
        return [json.loads(each) for each in events]

    def metric(self, name: str) -> float:
        lines = self.ask("/metrics")[1].splitlines()
        return float(next(line for line in lines if line.startswith(name)).split()[-1])


def until_idle(server: Server, within_s: float = 10.0) -> None:
    """Wait until nothing runs or waits, for so long at most."""
    end = time.monotonic() + within_s
    while server.metric("vllm:num_requests_running") or server.metric("vllm:num_requests_waiting"):
        assert time.monotonic() < end, "requests were left"
        time.sleep(0.02)


@contextmanager
def serving(folder: Path, *overrides: str) -> Iterator[Server]:
    """A server of a configuration, which has ended when the block has, and has no error to tell of."""
    told: Queue[Any] = Queue()
    found: dict[str, Any] = {}

    def run() -> None:
        try:
            settings = config("task=serve", "serve.port=0", *overrides)
            serve(settings, folder, told.put, lambda stop: found.update(stop=stop))
            told.put(None)
        except BaseException as error:
            told.put(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    address = told.get(timeout=120)
    if isinstance(address, BaseException):
        raise address
    try:
        yield Server(address)
    finally:
        found["stop"]()
        thread.join(timeout=30)
    if (error := told.get(timeout=5)) is not None:
        raise error
