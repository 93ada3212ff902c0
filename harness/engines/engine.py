"""What a run drives: an engine that serves a trace, simulated or real."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from engine.core.sequence import Request
from harness import interrupts
from harness.config import RunConfig
from harness.engines.resolving.fleet import resolve_fleet
from harness.engines.simulated import SimulatedEngine
from harness.record.record import Record
from harness.workload.trace import Trace
from simulator.arrivals import Arrivals


class Engine(Protocol):
    """An engine that serves a trace, simulated or real. `run` serves it all; a signal handler may call `stop`.

    Where `run` raises, `unfinished` still tells which requests each server has left: what was recorded is written.
    """

    block_bytes: int

    @property
    def record(self) -> Record:
        """What was recorded so far."""

    @property
    def pool_blocks(self) -> Sequence[int]:
        """KV blocks of a server of each pool; empty where they are not known."""

    @property
    def meta(self) -> Mapping[str, Any]:
        """After the run: what the results say in place of what the configuration says."""

    @property
    def num_blocks(self) -> int | None:
        """Of the first server; None where it is not known."""

    @property
    def device_name(self) -> str:
        """The hardware that is simulated, or that was measured."""

    def describe(self) -> str:
        """One line on the KV pool."""

    def step_times_from(self) -> str:
        """One line on where the times of steps come from."""

    def cost_model_text(self, load: str) -> str:
        """The cost model and its known error under such a load, for the summary."""

    def notes(self) -> list[str]:
        """After the run: lines that a reader of the results must know, such as step times outside a profile."""

    def run(self) -> None: ...

    def stop(self) -> None: ...

    def unfinished(self) -> Sequence[Sequence[Request]]: ...

    def close(self) -> None: ...


def make_engine(config: RunConfig, trace: Trace, arrivals: Arrivals) -> Engine:
    """The engine that `config.engine` names, ready to serve `trace`."""
    if config.engine.kind == "sim":
        return SimulatedEngine(resolve_fleet(config), trace, arrivals)
    if config.engine.kind == "openai":
        with interrupts.held():
            from harness.engines.endpoint.engine import EndpointEngine  # imported late, as it brings aiohttp

        return EndpointEngine(config, trace, arrivals)
    with interrupts.held():
        from harness.engines.real import RealEngine, resolve_real  # imported late, as it brings torch
    return RealEngine(resolve_real(config), trace, arrivals)
