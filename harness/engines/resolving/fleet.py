"""The servers that a configuration describes, as the simulator takes them."""

from __future__ import annotations

from dataclasses import replace

from engine.core.scaling import Scaling
from engine.core.sequence import Request
from harness.config import RunConfig
from harness.config.pools import pools_of
from harness.config.schema.fleet import AlikeFleet
from harness.engines.resolving.system import resolve
from harness.results.measures.slo import limits_ms
from simulator.fleets.fleet_system import Apart, FleetSystem, ServerPool
from simulator.fleets.handover import Network
from simulator.fleets.roster import Changes, Failure, Scaled


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
            config.network.bandwidth,
            _ns(config.network.latency_s),
            round(fleet.request_ms * 1e6),
            by_layers=fleet.kv_transfer == "by_layers",
        )
        num_decoders = len(servers.systems) - servers.num_entries
        rule = fleet.decode_router.make() if num_decoders > 1 else None
        apart = Apart(network, rule, fleet.local_prefill_tokens)
    rule = config.router.make() if servers.num_entries > 1 else None
    servers = replace(servers, changes=_changes(config))
    reading_ns = round(config.router.view_delay_ms * 1e6)
    return replace(servers, rule=rule, reading_ns=reading_ns, reads_steps=config.router.view_of_steps, apart=apart)


def _changes(config: RunConfig) -> Changes | None:
    """Failures and the autoscaler; None without any."""
    if not (config.failures or config.autoscaler.is_on):
        return None
    failures = tuple(
        Failure(each.server, _ns(each.time_s), None if each.down_s is None else _ns(each.down_s))
        for each in config.failures
    )
    asked = config.autoscaler
    if asked.metric == "none":
        return Changes(failures, config.retry_failed)
    readings = max(1, round(asked.hold_s / asked.interval_s))
    slo = config.metrics.slo
    options = Scaling(asked.metric, asked.aim(slo.percentile), asked.fewest, asked.most, readings)
    limits = {name: limit * 1e6 for name, limit in limits_ms(slo).items()}

    def is_within_slo(request: Request) -> bool:
        first, last, num_tokens = request.first_token_time, request.finish_time, request.sequences[0].num_output_tokens
        assert first is not None and last is not None, "it has ended"
        found = {"ttft": first - request.arrival_time, "e2el": last - request.arrival_time}
        found["tpot"] = (last - first) // max(1, num_tokens - 1)
        return all(found[name] <= limit for name, limit in limits.items())

    scaled = Scaled(options, _ns(asked.interval_s), _ns(asked.start_up_s), is_within_slo)
    return Changes(failures, config.retry_failed, scaled, config.replicas)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
