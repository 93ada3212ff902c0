"""Servers from systems: a scheduler of the core with a cost model beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import gcd

from engine.core.decodes.uniform import uniform_decodes
from engine.core.kv.tiers.shared_store import SharedStore
from engine.core.scheduler import Scheduler
from engine.core.scheduler_making import make_scheduler
from engine.core.scheduler_options import SchedulerOptions
from engine.core.work import ChunkWork, StepWork
from simulator.copies.connector_links import ConnectorLinks
from simulator.copies.transfers import NoTransfers, TransferEngine
from simulator.costs.cost import CostModel
from simulator.costs.profiled import ProfiledCost
from simulator.costs.ranks import RankCost, by_profile, by_rates
from simulator.costs.roofline import RooflineCost
from simulator.costs.stage import LayerCost, StageCost
from simulator.drivers.lockstep import Ranks
from simulator.fleets.fleet_system import ServerPool
from simulator.fleets.handover import Network, Port
from simulator.models.model import layers_of_stages
from simulator.observer import Observer
from simulator.replica import Replica
from simulator.system import System


def make_replica(
    system: System, cost: CostModel, observer: Observer, port: Port | None = None, store: SharedStore | None = None
) -> Replica:
    """A server as `system` describes it, whose steps `cost` prices; `port` is its link to others that it hands KV to or
    takes it from, `store` a memory that it shares with others."""
    transfers: TransferEngine | None = port or system.tiers.links(system.pool, system.tensor_parallel_size, store)
    scheduler = scheduler_of(system)
    if scheduler.blocks.connector is not None:
        rate = system.tiers.host_gb_per_s * 1e9
        transfers = ConnectorLinks(scheduler, system.pool.block_bytes, rate)
    if store is not None:
        assert scheduler.blocks.offload is not None, "the system has a store"
        scheduler.blocks.offload.share(store)
    return Replica(
        scheduler,
        cost,
        observer,
        compress=system.compress and system.data_parallel_size == 1,
        max_lookahead_steps=system.max_lookahead_steps,
        transfers=transfers,
    )


def stores_of(systems: Sequence[System]) -> list[SharedStore | None]:
    """The store of each server; None for those without one."""
    made: dict[int, SharedStore] = {}
    found: list[SharedStore | None] = []
    number = 0
    for system in systems:
        if (tier := system.tiers.store) is None:
            found.append(None)
            continue
        node = number // tier.num_servers if tier.num_servers else 0
        if node not in made:
            made[node] = SharedStore(tier.num_blocks, tier.eviction)
        found.append(made[node])
        number += 1
    return found


def make_port(system: System, network: Network, store: SharedStore | None = None) -> Port:
    """The link of a server to others. Of layers with a sliding window the little that they keep is not counted."""
    links = system.tiers.links(system.pool, system.tensor_parallel_size, store)
    return Port(network, system.pool.block_bytes, links or NoTransfers(), system.model.num_layers)


def scheduler_of(system: System) -> Scheduler:
    """The scheduler of a server, with a pool of its own."""
    return make_scheduler(
        _with_recompute_time(system),
        num_blocks=system.pool.num_blocks,
        block_size=system.block_size,
        max_num_seqs=system.max_num_seqs,
        max_num_batched_tokens=system.max_num_batched_tokens,
        max_model_len=system.max_model_len,
        make_decodes=uniform_decodes
        if system.speculation is None
        else partial(system.speculation.make_decodes, plans_ahead=system.scheduler.async_scheduling),
        contiguous=system.contiguous,
        cached_size=system.pool.cached_size,
        state_blocks=system.pool.state_blocks,
        num_host_blocks=system.tiers.num_host_blocks,
        transfer_block_us=system.tiers.transfer_block_us(system.pool),
        offload=system.tiers.offload,
        num_lanes=system.pipeline_parallel_size,
    )


def stage_costs(system: System, whole: CostModel) -> list[CostModel]:
    """The cost models of the stages of a pipeline, where `whole` prices all of a step; none for a server that is no
    pipeline."""
    num_stages = system.pipeline_parallel_size
    if num_stages == 1:
        return []
    model = system.model
    part = _with_fewer_layers(system)
    layers = LayerCost(whole, part.cost_model(), model.num_layers, part.model.num_layers)
    sizes = layers_of_stages(model.num_layers, num_stages)
    return [
        StageCost(layers, size, model, system.device, is_last=stage == num_stages - 1)
        for stage, size in enumerate(sizes)
    ]


def ranks_of(pool: ServerPool, first: int, whole: CostModel) -> list[Ranks]:
    """The servers of a pool that step together, of which the first has the number `first`; none that step alone."""
    system, count = pool.system, pool.system.data_parallel_size
    if count == 1:
        return []
    if isinstance(whole, ProfiledCost):
        shared_ns = by_profile(whole, system.model)
    else:
        assert isinstance(whole, RooflineCost), "the configuration says so"
        shared_ns = by_rates(whole, system.model, system.device)
    return [Ranks(number, count, shared_ns) for number in range(first, first + pool.num_servers, count)]


def cost_of(system: System, whole: CostModel) -> CostModel:
    """What prices the steps of a server, of a rank without what it shares with others."""
    if system.data_parallel_size == 1 or isinstance(whole, ProfiledCost):  # whose profile has no experts
        return whole
    assert isinstance(whole, RooflineCost), "the configuration says so"
    return RankCost(whole)


def _with_fewer_layers(system: System) -> System:
    """The same system with about half of the layers, of the same kinds in the same shares."""
    model, profile = system.model, system.profile
    groups = gcd(model.num_layers, *(blocks.number for blocks in model.blocks))
    share = (groups // 2) / groups if groups > 1 else 0.5
    count = round(model.num_layers * share)
    fewer = model.with_layers(count)
    if profile is None:
        return replace(system, model=fewer)
    meta = profile.meta
    calls = {
        name: number * count // model.num_layers if number % model.num_layers == 0 else number
        for name, number in meta.calls.items()
    }
    shape = {name: fewer.sizes.get(name, size) for name, size in meta.shape.items()}
    meta = replace(
        meta, num_layers=count, calls=calls, shape=shape, eager_step_us=meta.eager_step_us * count / model.num_layers
    )
    return replace(system, model=fewer, profile=replace(profile, meta=meta))


def _with_recompute_time(system: System) -> SchedulerOptions:
    """The scheduler's options; preemption=auto predicts with the time of a token in the largest prefill step."""
    options = system.scheduler
    if options.preemption != "auto" or options.recompute_token_us is not None:
        return options
    num_tokens = min(system.max_num_batched_tokens, system.max_model_len)
    step_ns = system.cost_model().step_ns(StepWork([ChunkWork(0, num_tokens, True)], 0, 0, 0))
    return replace(options, recompute_token_us=step_ns / num_tokens / 1e3)
