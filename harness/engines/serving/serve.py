"""Runs a server until it is interrupted."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from engine.server.app import RECEIVED, make_app
from engine.server.backend import Backend
from engine.server.tally import Tally
from engine.switching import quick_switches, quick_wakes
from harness import interrupts
from harness.config import RunConfig
from harness.engines.resolving.fleet import resolve_fleet
from harness.engines.serving.ledger import Ledger, write_served
from harness.engines.serving.router import RouterServer
from harness.engines.serving.simulated import SimulatedBackend
from harness.errors import ConfigError
from simulator.fleets.fleet_system import FleetSystem

_LAST_S = 5  # that requests under way have after an interrupt
_YOUNG = 5_000  # objects that are made before a collection of the youngest: half a millisecond
_ROUNDS = 200  # of these before one of all that was made since, which stops a server for some 50 ms
_BACKLOG = 4096  # connections that wait to be accepted


class Startable(Backend, Protocol):
    """A backend that begins with the event loop."""

    def start(self) -> None: ...


def make_backend(config: RunConfig, tally: Tally, ledgers: Sequence[Ledger] = ()) -> Startable:
    """What `config.engine` names; `tally` is told of all steps, a ledger of one server's. Raises ConfigError."""
    name = config.serve.model_name or config.model.name
    if config.engine.kind == "sim":
        fleet = resolve_fleet(config)
        if obstacle := _obstacle(fleet):
            raise ConfigError(f"task=serve: {obstacle}: not in real time")
        return SimulatedBackend(
            fleet.systems,
            tally,
            model_name=name,
            answer_tokens=config.serve.answer_tokens,
            rule=fleet.rule,
            reading_s=fleet.reading_ns * 1e-9,
            observers=ledgers,
        )
    with interrupts.held():
        from harness.engines.serving.real import real_backend  # imported late, as it brings torch
    return real_backend(config, tally, ledgers[0] if ledgers else None, name)


def _obstacle(fleet: FleetSystem) -> str | None:
    """Why the servers of a fleet cannot be simulated in real time; None where they can."""
    obstacles = {
        "prompts on servers of their own": fleet.apart is not None,
        "failures or an autoscaler": fleet.changes is not None,
        "the stages of a pipeline": any(system.pipeline_parallel_size > 1 for system in fleet.systems),
        "ranks that step together": any(system.data_parallel_size > 1 for system in fleet.systems),
        "what servers send with their steps (router.view_of_steps)": fleet.reads_steps,
        "a store that servers share": any(system.tiers.store is not None for system in fleet.systems),
    }
    return next((name for name, is_there in obstacles.items() if is_there), None)


def serve(
    config: RunConfig,
    folder: Path,
    on_ready: Callable[[str], None],
    stops: Callable[[Callable[[], None]], None] = lambda stop: None,
) -> None:
    """Serve until a signal comes; then write to `folder` what was recorded, where `config` asks for it.

    Args:
        on_ready: told the address, once requests can come.
        stops: given a function that ends the server, too.

    Raises:
        ConfigError: the address is in use, or the configuration cannot be served.
    """
    with closing(_listen(config)) as listening:
        if config.serve.servers:
            router = _router(config)
            asyncio.run(_run(router.app(), router.start, listening, on_ready, stops, router.close))
            return
        tally, ledgers = Tally(), [Ledger() for _ in range(config.num_servers)] if config.serve.record else []
        with closing(make_backend(config, tally, ledgers)) as backend:
            app = make_app(backend, config.serve.max_waiting)
            asyncio.run(_run(app, backend.start, listening, on_ready, stops))
            if ledgers:
                write_served(ledgers, config, tally.schedulers()[0].blocks.num_blocks, folder)


def _router(config: RunConfig) -> RouterServer:
    rule = config.router.make()
    assert rule is not None, "a rule of the user's own was imported when the configuration was read"
    if rule.reads_caches:
        raise ConfigError("router.options.precise=true: real servers tell no router what they have cached")
    return RouterServer(config.serve.servers, rule, config.router.view_delay_ms * 1e-3)


class _Protocol(HttpToolsProtocol):
    """Notes when a call comes, which is before the event loop has time for it."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[RECEIVED] = time.monotonic_ns()  # type: ignore[literal-required]


async def _nothing() -> None: ...


async def _run(
    app: ASGIApp,
    start: Callable[[], None],
    listening: socket.socket,
    on_ready: Callable[[str], None],
    stops: Callable[[Callable[[], None]], None],
    end: Callable[[], Awaitable[None]] = _nothing,
) -> None:
    settings = uvicorn.Config(
        app, http=_Protocol, log_level="warning", lifespan="off", ws="none", access_log=False, backlog=_BACKLOG,
        timeout_graceful_shutdown=_LAST_S,
    )  # fmt: skip
    server = uvicorn.Server(settings)
    server.capture_signals = nullcontext  # type: ignore[method-assign, assignment]  # they are noted here

    def stop() -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # the tracebacks of requests that are cut off
        server.should_exit = True

    stops(stop)
    start()
    host, port = listening.getsockname()[:2]
    on_ready(f"http://{host}:{port}")
    with interrupts.noted(stop), _short_collections(), quick_switches(), quick_wakes():  # after the threads of `start`
        if interrupts.was_raised():  # and lost on the way here
            stop()
        await server.serve(sockets=[listening])
    await end()


@contextmanager
def _short_collections() -> Iterator[None]:
    """A collection of all that was imported stops a server for a tenth of a second: it is left out, and what lives
    long is looked at rarely."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _ROUNDS, 10)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def _listen(config: RunConfig) -> socket.socket:
    host, port = config.serve.host, config.serve.port
    try:
        return socket.create_server((host, port), backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(f"serve.host={host} serve.port={port}: {error.strerror or error}") from None
