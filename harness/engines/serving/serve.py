"""Runs a server until it is interrupted."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Protocol

import uvicorn
from starlette.applications import Starlette

from engine.server.app import make_app
from engine.server.backend import Backend
from engine.server.tally import Tally
from harness import interrupts
from harness.config import RunConfig
from harness.engines.resolving.fleet import resolve_fleet
from harness.engines.serving.ledger import Ledger, write_served
from harness.engines.serving.simulated import SimulatedBackend
from harness.errors import ConfigError

_LAST_S = 5  # that requests under way have after an interrupt
_BACKLOG = 4096  # connections that wait to be accepted


class Startable(Backend, Protocol):
    """A backend that begins with the event loop."""

    def start(self) -> None: ...


def make_backend(config: RunConfig, tally: Tally, ledger: Ledger | None = None) -> Startable:
    """What `config.engine` names; its steps are told to `tally` and `ledger`. Raises ConfigError."""
    name = config.serve.model_name or config.model.name
    if config.engine.kind == "sim":
        if config.frontend.kind != "none":
            raise ConfigError(
                f"task=serve: frontend={config.frontend.kind} is simulated; this server is its own front end"
            )
        fleet = resolve_fleet(config)
        if len(fleet.systems) > 1 or fleet.systems[0].pipeline_parallel_size > 1:
            raise ConfigError("task=serve: engine=sim is one server without stages; set replicas=1")
        return SimulatedBackend(
            fleet.systems[0],
            tally,
            model_name=name,
            answer_tokens=config.serve.answer_tokens,
            observers=[ledger] if ledger else [],
        )
    with interrupts.held():
        from harness.engines.serving.real import real_backend  # imported late, as it brings torch
    return real_backend(config, tally, ledger, name)


def serve(
    config: RunConfig,
    folder: Path,
    on_ready: Callable[[str], None],
    stops: Callable[[Callable[[], None]], None] = lambda stop: None,
) -> Tally:
    """Serve until a signal comes; then write to `folder` what was recorded, where `config` asks for it.

    Args:
        on_ready: told the address, once requests can come.
        stops: given a function that ends the server, too.

    Raises:
        ConfigError: the address is in use, or the configuration cannot be served.
    """
    tally, ledger = Tally(), Ledger() if config.serve.record else None
    listening = _listen(config)
    backend = make_backend(config, tally, ledger)
    try:
        app = make_app(backend, config.serve.max_waiting)
        asyncio.run(_run(app, backend.start, listening, on_ready, stops))
        if ledger is not None and tally.scheduler is not None:
            write_served(ledger, config, tally.scheduler().blocks.num_blocks, folder)
    finally:
        backend.close()
        listening.close()
    return tally


async def _run(
    app: Starlette,
    start: Callable[[], None],
    listening: socket.socket,
    on_ready: Callable[[str], None],
    stops: Callable[[Callable[[], None]], None],
) -> None:
    settings = uvicorn.Config(
        app, log_level="warning", lifespan="off", ws="none", access_log=False, backlog=_BACKLOG,
        timeout_graceful_shutdown=_LAST_S,
    )  # fmt: skip
    server = uvicorn.Server(settings)
    server.capture_signals = nullcontext  # type: ignore[method-assign, assignment]  # they are noted here

    def stop() -> None:
        server.should_exit = True

    stops(stop)
    start()
    host, port = listening.getsockname()[:2]
    on_ready(f"http://{host}:{port}")
    with interrupts.noted(stop):
        await server.serve(sockets=[listening])


def _listen(config: RunConfig) -> socket.socket:
    host, port = config.serve.host, config.serve.port
    try:
        return socket.create_server((host, port), backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(f"serve.host={host} serve.port={port}: {error.strerror or error}") from None
