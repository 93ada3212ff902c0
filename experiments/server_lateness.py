"""How early or late a simulated server sends the tokens of 1,000 streams, beside what the sends alone take here.

    python -m experiments.server_lateness

A chunk is early or late by the time from when the simulation says that its token comes until the chunk was handed to
the kernel. Server and client are processes of their own, and the client reads raw bytes, as it would take the server's
time otherwise. Tokens of a server's step come at one time, but are sent one after the other, from before that time
until after it: `floor` is how long as many sends over as many connections take with nothing else to do, made as the
server makes them: in batches of the kernel where it has such calls, else in a loop.
"""

from __future__ import annotations

import json
import multiprocessing
import re
import select
import socket
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np

from engine.server.writes import Batch, batched_writes
from experiments import PLAIN, RESULTS, provenance, write_result
from experiments.three_worlds import server

MODEL = ("engine=sim", *PLAIN, "model=qwen3-32b", "device=h200", "router=least_requests")
NUM_STREAMS = 1_000
NUM_TOKENS = 300
RAMP_S = 4.0  # in which the streams are opened
SERVERS = (1, 2, 4, 8, 16)
_PROMPT = {"prompt": [1] * 8, "max_tokens": NUM_TOKENS, "stream": True}
_CHUNK = b"x" * 240  # as long as one of the server's
_END = b"0\r\n\r\n"


def read_streams(address: str) -> None:
    """Read all streams to their ends."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    body = json.dumps(_PROMPT).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    poll, reading, started_s = select.epoll(), dict[int, socket.socket](), time.monotonic()
    num_opened = 0
    while num_opened < NUM_STREAMS or reading:
        while num_opened < NUM_STREAMS and time.monotonic() > started_s + RAMP_S * num_opened / NUM_STREAMS:
            each = socket.create_connection((host, int(port)))
            each.sendall(head + body)
            reading[each.fileno()] = each
            poll.register(each, select.EPOLLIN)
            num_opened += 1
        for number, _ in poll.poll(0.005):
            data = reading[number].recv(1 << 16)
            if not data or data.endswith(_END):
                poll.unregister(number)
                reading.pop(number).close()


def lateness(num_servers: int, folder: Path) -> dict[str, Any]:
    """Shares of the chunks that were early or late by so many ms at most, and of those that were early at all, with the
    streams spread over some servers."""
    seats = -(-NUM_STREAMS // num_servers)
    with server(folder, *MODEL, f"replicas={num_servers}", f"max_num_seqs={seats}") as address:
        started_s = time.monotonic()
        read_streams(address)
        passed_s = time.monotonic() - started_s
        text = urlopen(f"{address}/metrics").read().decode()
    counts = re.findall(r'chunk_lateness_seconds_bucket{le="([^"]+)".*} (\d+)', text)
    total = int(counts[-1][1])
    below = {float(bound): int(count) / total for bound, count in counts[:-1]}
    shares = {f"{1e3 * bound:g}": share - below[-bound] for bound, share in below.items() if bound > 0}
    return {
        "servers": num_servers, "tokens_per_s": total / passed_s, "within_ms": shares, "early": below[0.0]
    }  # fmt: skip


def send_us(num_streams: int, num_steps: int = 100, pause_s: float = 0.02) -> dict[str, float]:
    """How long the sends of a step take with nothing else to do, by send: in the median step and the slowest in a
    hundred."""
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listening:
        listening.settimeout(60)
        process = multiprocessing.get_context("spawn").Process(
            target=_read_all, args=(listening.getsockname()[1], num_streams)
        )
        process.start()
        streams = [listening.accept()[0] for _ in range(num_streams)]
    for each in streams:
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        each.setblocking(False)
    sends, times, writes = [each.send for each in streams], [], batched_writes()
    descriptors, chunks = [each.fileno() for each in streams], [_CHUNK] * num_streams
    for _ in range(num_steps):
        batch = Batch(descriptors, chunks)
        time.sleep(pause_s)
        started_s = time.perf_counter()
        if writes is not None:
            writes.write(batch)
        else:
            for send in sends:
                send(_CHUNK)
        times.append((time.perf_counter() - started_s) / num_streams * 1e6)
    if writes is not None:
        writes.close()
    for each in streams:
        each.close()
    process.join()
    return {"median": float(np.median(times)), "p99": float(np.percentile(times, 99))}


def _read_all(port: int, num_streams: int) -> None:
    poll, reading = select.epoll(), dict[int, socket.socket]()
    for _ in range(num_streams):
        each = socket.create_connection(("127.0.0.1", port))
        reading[each.fileno()] = each
        poll.register(each, select.EPOLLIN)
    while reading:
        for number, _ in poll.poll():
            if not reading[number].recv(1 << 16):
                poll.unregister(number)
                reading.pop(number).close()


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for num_servers in SERVERS:
            row = lateness(num_servers, Path(place, f"late-{num_servers}"))
            row["floor_us_per_send"] = send_us(-(-NUM_STREAMS // num_servers))
            rows.append(row)
            shares = ", ".join(f"{share:.1%} within {bound} ms" for bound, share in row["within_ms"].items())
            floor = row["floor_us_per_send"]
            print(
                f"{NUM_STREAMS} streams, {num_servers} servers, {row['tokens_per_s']:.0f} tokens/s: {shares}; "
                f"{row['early']:.0%} early; bare sends {floor['median']:.1f} us each (p99 {floor['p99']:.1f})"
            )
    write_result(RESULTS / "server_lateness.json", {**provenance("experiments.server_lateness"), "runs": rows})


if __name__ == "__main__":
    main()
