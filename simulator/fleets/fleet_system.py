"""All servers that are simulated, as plain data: pools of equal ones, and what spreads requests over them."""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.routing.router import Router
from simulator.fleets.handover import Network, Role
from simulator.fleets.roster import Changes
from simulator.system import System


@dataclass(frozen=True, eq=False)
class ServerPool:
    """`num_servers` servers like `system`, which serve requests, compute their prompts or decode them.

    Of data-parallel ranks, each is a server.
    """

    role: Role
    system: System
    num_servers: int = 1


@dataclass(frozen=True, eq=False)
class Apart:
    """Where prompts and decodes have servers of their own.

    Attributes:
        network: between them.
        rule: chooses the server for the decodes; None for one.
        local_tokens: a prompt with at most so many tokens that its server for decodes was not sent is computed there.
    """

    network: Network
    rule: Router | None = None
    local_tokens: int = 0


@dataclass(frozen=True, eq=False)
class FleetSystem:
    """The servers of a run, which are numbered in the order of the pools.

    Attributes:
        pools: those for decodes come last.
        rule: chooses the server of a request, or of its prompt; None for one. It keeps account of a single run.
        reading_ns: every so many ns the router reads the metrics of the servers; 0 where it always knows them.
        reads_steps: whether these are of the end of each server's last step.
        changes: of the servers while they run; None for none.
        apart: None where each server serves whole requests.
    """

    pools: tuple[ServerPool, ...]
    rule: Router | None = None
    reading_ns: int = 0
    reads_steps: bool = False
    apart: Apart | None = None
    changes: Changes | None = None

    @classmethod
    def alone(cls, system: System) -> FleetSystem:
        """A single server."""
        return cls((ServerPool("serve", system),))

    @property
    def systems(self) -> list[System]:
        """That of each server."""
        return [pool.system for pool in self.pools for _ in range(pool.num_servers)]

    @property
    def num_entries(self) -> int:
        """Servers that requests come to first."""
        return sum(pool.num_servers for pool in self.pools if pool.role != "decode")
