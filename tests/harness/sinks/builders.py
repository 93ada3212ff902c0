"""Folders of results to send, and a collector of spans."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from harness.studies.outcome import Given, write_settings
from harness.studies.run import serve_trace
from tests.harness.builders import config


def folder_of(folder: Path, *overrides: str) -> Path:
    """The folder of a run with a record of what each sequence did when."""
    settings = config(*overrides, "sinks=otel")
    write_settings(settings, {}, Given(), folder)
    serve_trace(settings, write=lambda run: run.write(folder))
    return folder


@contextmanager
def collector(bodies: list[bytes], status: int = 200) -> Iterator[str]:
    """The address of a server that answers all with `status` and keeps what it gets."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # noqa: N802
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
