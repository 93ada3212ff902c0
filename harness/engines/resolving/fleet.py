"""The servers that a configuration describes, as the simulator takes them."""

from __future__ import annotations

from dataclasses import replace

from harness.config import RunConfig
from harness.config.pools import pools_of
from harness.config.schema.fleet import AlikeFleet
from harness.engines.resolving.system import resolve
from simulator.fleet_system import Apart, FleetSystem, ServerPool
from simulator.handover import Network


def resolve_fleet(config: RunConfig) -> FleetSystem:
    """All servers, and the rules that spread requests over them; to be called for each run, as rules keep account.

    Raises:
        ConfigError: as `resolve`.
    """
    pools = tuple(ServerPool(pool.role, resolve(pool.config), pool.config.num_servers) for pool in pools_of(config))
    servers = FleetSystem(pools)
    apart, fleet = None, config.fleet
    if config.is_apart:
        assert not isinstance(fleet, AlikeFleet)
        network = Network(
            config.network.bandwidth, round(config.network.latency_s * 1e9), round(fleet.request_ms * 1e6)
        )
        num_decoders = len(servers.systems) - servers.num_entries
        rule = fleet.decode_router.make() if num_decoders > 1 else None
        apart = Apart(network, rule, fleet.local_prefill_tokens)
    rule = config.router.make() if servers.num_entries > 1 else None
    return replace(servers, rule=rule, reading_ns=round(config.router.view_delay_ms * 1e6), apart=apart)
