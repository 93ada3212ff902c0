"""The servers of a fleet, and the rule by which requests are spread over them."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from engine.core.planning.policy_options import read_options
from engine.core.routing import find_router
from engine.core.routing.router import Router
from harness.config.schema.base import ConfigModel, Fraction, Text, within
from harness.config.schema.model import ModelConfig, WeightFormat
from harness.config.schema.system import CostConfig, EngineConfig, SchedulerConfig
from harness.config.schema.tiers import TiersConfig
from simulator.fleets.handover import Role


class RuleConfig(ConfigModel):
    """How a router chooses.

    Attributes:
        rule: which server gets a request when it arrives: round_robin, in turn; random; least_requests, the one with
            the fewest requests under way; least_tokens, with the fewest prompt tokens in these; power_of_two, the less
            busy of two that are drawn; session_affinity, the one of the conversation; prefix_affinity, the one that was
            sent most of the prompt before; token_load, the one with the fewest prompt tokens to compute, of those that
            were sent the beginning of the prompt; and weighted_score, the highest sum of scores, both as in llm-d's
            endpoint picker; vllm_balancer, the shortest queue, as vLLM chooses among data-parallel ranks; or a rule of
            your own, as package.module:name.
        options: settings of the rule's own.
    """

    rule: Text = "round_robin"
    options: dict[str, Any] = {}

    @model_validator(mode="after")
    def _check_rule(self) -> "RuleConfig":
        self.make()
        return self

    def make(self) -> Router | None:
        """The rule, at the start of a run; None for one from elsewhere that has not been imported.

        Raises:
            ValueError: there is no such rule, or it has no such settings.
        """
        router = find_router(self.rule)
        if router is None:
            return None
        return router(read_options(router.options_type, self.options, f"rule={self.rule}"))


class RouterConfig(RuleConfig):
    """The router.

    Attributes:
        view_delay_ms: the router reads what servers tell of themselves (queue, batch, free KV blocks) every so many ms;
            0: it always knows. What it has sent itself it always knows.
        view_of_steps: what is read then is what each server sent with the outputs of its last step, as the metrics of
            vLLM have it; in simulation only. false: how the servers are when they are read.
        renders: whether it has each prompt tokenised by the front end of one of the servers before it chooses, as
            llm-d's token-producer does where servers tell of their caches.
    """

    view_delay_ms: Annotated[float, Field(ge=0, le=3_600_000)] = 0.0
    view_of_steps: bool = False
    renders: bool = False

    @model_validator(mode="after")
    def _check_delay(self) -> "RouterConfig":
        if 0 < self.view_delay_ms < 1:
            raise ValueError(f"view_delay_ms={self.view_delay_ms}: must be 0 or >= 1")
        if self.view_of_steps and not self.view_delay_ms:
            raise ValueError("view_of_steps=true: needs view_delay_ms, how often servers are read")
        return self


class NetworkConfig(ConfigModel):
    """What connects the servers of a fleet; read where one hands KV to another.

    Attributes:
        name: of the link.
        bandwidth: bytes/s between a GPU and those of other servers, in each direction.
        latency_s: fixed time of the transfer of a prompt's KV.
    """

    name: Text = "RDMA 400 Gbit/s"
    bandwidth: Annotated[float, within("link_bandwidth")] = 46e9
    latency_s: Annotated[float, Field(ge=0, le=10)] = 1e-3


class FrontEndConfig(ConfigModel):
    """What requests cost before an engine sees them; in simulation only.

    Attributes:
        kind: none, clients call the engine; http, a server of which only the way to it is known; vllm, its API server,
            by the version of vLLM.
        endpoint: chat, which renders a template; or completions.
        request_ms: work of the process for each request; null takes that of the kind, and so on.
        prompt_token_us: the same for each token of a prompt.
        latency_ms: mean time from client to engine beside that work.
        latency_spread: of it; 0.5 for 0.5 to 1.5 times the mean, all as likely.
        processes: of each server, as --api-server-count.
    """

    kind: Literal["none", "http", "vllm"] = "none"
    endpoint: Literal["chat", "completions"] = "chat"
    request_ms: Annotated[float, Field(ge=0, le=60_000)] | None = None
    prompt_token_us: Annotated[float, Field(ge=0, le=60_000)] | None = None
    latency_ms: Annotated[float, Field(ge=0, le=60_000)] | None = None
    latency_spread: Annotated[float, Field(ge=0, le=1)] | None = None
    processes: Annotated[int, Field(ge=1, le=1024)] = 1


class PoolConfig(ConfigModel):
    """Equal servers. A key that is null or empty is as for the run.

    Attributes:
        replicas: how many servers.
        role: serve, all of a request; prefill, its prompt; decode, the rest.
        device: an option of device, by its name.
        tensor_parallel_size: as the top-level key of this name, and so on.
        pipeline_parallel_size: stages; 1 where prompts have servers of their own.
        data_parallel_size: ranks of each server.
        expert_parallel: whether the GPUs of each server share out whole experts.
        quantization: format of the weights.
        max_num_seqs: sequences that may run at the same time.
        max_num_batched_tokens: tokens of a step.
        gpu_memory_utilization: share of the device's memory.
        num_blocks: KV-cache blocks.
        max_model_len: longest sequence.
        kv_cache_memory_bytes: the KV cache of each GPU.
        engine: keys of engine that differ, such as {max_graph_tokens:0}.
        scheduler: keys of scheduler that differ, such as {async_scheduling:false}.
        tiers: keys of tiers that differ, such as {host:{gib:100},offload:true}.
    """

    replicas: Annotated[int, within("replicas")] = 1
    role: Role = "serve"
    device: Text | None = None
    tensor_parallel_size: Annotated[int, within("tensor_parallel_size")] | None = None
    pipeline_parallel_size: Annotated[int, within("pipeline_parallel_size")] | None = None
    data_parallel_size: Annotated[int, within("replicas")] | None = None
    expert_parallel: bool | None = None
    quantization: WeightFormat | None = None
    max_num_seqs: Annotated[int, within("max_num_seqs")] | None = None
    max_num_batched_tokens: Annotated[int, within("max_num_batched_tokens")] | None = None
    gpu_memory_utilization: Fraction | None = None
    num_blocks: Annotated[int, within("num_blocks")] | None = None
    max_model_len: Annotated[int, within("max_model_len")] | None = None
    kv_cache_memory_bytes: Annotated[int, within("memory_bytes")] | None = None
    engine: dict[str, Any] = {}
    scheduler: dict[str, Any] = {}
    tiers: dict[str, Any] = {}


class AlikeFleet(ConfigModel):
    """As many servers as `replicas` says, each as the run describes it."""

    kind: Literal["replicas"] = "replicas"


class ApartConfig(ConfigModel):
    """Where prompts and decodes have servers of their own.

    Attributes:
        local_prefill_tokens: a prompt with at most so many tokens that its server for decodes was not sent before is
            computed there.
        request_ms: from the end of a prompt until the request is in the queue of the other server.
        kv_transfer: at_end, the server for decodes pulls a prompt's KV when it has blocks for it, as vLLM's
            NixlConnector; by_layers, the other one sends each layer when the prompt's last chunk has computed it, as
            vLLM's P2pNcclConnector.
    """

    local_prefill_tokens: Annotated[int, Field(ge=0, le=1 << 30)] = 0
    request_ms: Annotated[float, Field(ge=0, le=60_000)] = 1.0
    kv_transfer: Literal["at_end", "by_layers"] = "at_end"


class PoolsConfig(ApartConfig):
    """Several pools.

    Attributes:
        decode_router: which of the servers for decodes gets a request, chosen when it arrives; `router` chooses the
            server for its prompt.
    """

    decode_router: RuleConfig = Field(default_factory=lambda: RuleConfig(rule="least_requests"))


class DisaggregatedFleet(PoolsConfig):
    """A pool for prompts and one for decodes.

    Attributes:
        prefill: the servers for prompts; their `role` is not read, nor is that of the others.
        decode: the servers for decodes.
    """

    kind: Literal["disaggregated"] = "disaggregated"
    prefill: PoolConfig = Field(default_factory=PoolConfig)
    decode: PoolConfig = Field(default_factory=PoolConfig)

    @property
    def pools(self) -> tuple[PoolConfig, ...]:
        roles: dict[Role, PoolConfig] = {"prefill": self.prefill, "decode": self.decode}
        return tuple(pool.model_copy(update={"role": role}) for role, pool in roles.items())


class CustomFleet(PoolsConfig):
    """Pools with roles: all serve, or some are for prompts and some for decodes.

    Attributes:
        pools: a group of keys for each pool, as fleet=disaggregated has them for two.
    """

    kind: Literal["custom"] = "custom"
    pools: Annotated[tuple[PoolConfig, ...], Field(strict=False, min_length=1)]

    @model_validator(mode="after")
    def _check_roles(self) -> "CustomFleet":
        roles = {pool.role for pool in self.pools}
        if roles not in ({"serve"}, {"prefill", "decode"}):
            raise ValueError(
                f"pools: roles {', '.join(sorted(roles))}: all must be serve, or both prefill and decode be there"
            )
        return self


FleetConfig = Annotated[AlikeFleet | DisaggregatedFleet | CustomFleet, Field(discriminator="kind")]


def check_stages(
    num_stages: int,
    most: int,
    engine: EngineConfig,
    scheduler: SchedulerConfig,
    tiers: TiersConfig,
    cost: CostConfig,
) -> None:
    """Raise ValueError where a server cannot be a pipeline of so many stages; `most` is how many there can be."""
    obstacles = {
        f"must be <= {most}, layers of the model and max_num_seqs": num_stages > most,
        "steps of a lane are not planned ahead; use scheduler.async_scheduling=false": scheduler.async_scheduling,
        "a pipeline has no link to the host's memory; use tiers=none": tiers.is_on,
        "cost=linear does not tell what a layer takes; use cost=profiled or cost=roofline": cost.kind == "linear",
        "each step is planned on its own; use engine.max_lookahead_steps=1": engine.max_lookahead_steps > 1,
    }
    _refuse(f"pipeline_parallel_size={num_stages}", obstacles if num_stages > 1 else {})


def check_whole_experts(num_gpus: int, model: ModelConfig, engine: EngineConfig, cost: CostConfig) -> None:
    """Raise ValueError where `num_gpus` cannot share out whole experts."""
    counts = model.expert_counts
    obstacles = {
        "its GPUs share out whole experts, and there is one GPU": num_gpus == 1,
        f"{model.name} has no experts": not counts,
        f"{num_gpus} GPUs must share out the {', '.join(map(str, counts))} experts of {model.name}": any(
            count % num_gpus for count in counts
        ),
        f"engine={engine.kind} has a part of every expert on each GPU; use engine=sim": engine.kind != "sim",
        f"cost={cost.kind} does not tell what experts take; use cost=roofline": cost.kind in ("linear", "custom"),
    }
    _refuse("expert_parallel=true", obstacles)


def check_ranks(
    num_ranks: int, model: ModelConfig, engine: EngineConfig, *, shares_out: bool, steps_alone: bool
) -> None:
    """Raise ValueError where a server cannot be ranks with data-parallel attention that share out the experts.

    `steps_alone`: the server is no pipeline and drafts nothing.
    """
    obstacles = {
        f"{model.name} has no experts; use replicas={num_ranks} router=vllm_balancer": not model.expert_counts,
        "ranks that share the experts' matrices are not simulated; use expert_parallel=true": not shares_out,
        f"engine={engine.kind} is one server; use engine=sim": engine.kind != "sim",
        "needs pipeline_parallel_size=1 and speculation=none": not steps_alone,
        "each step is planned on its own; use engine.max_lookahead_steps=1": engine.max_lookahead_steps > 1,
    }
    _refuse(f"data_parallel_size={num_ranks}", obstacles if num_ranks > 1 else {})


def check_pools(
    fleet: DisaggregatedFleet | CustomFleet, num_replicas: int, engine: EngineConfig, task: str, num_samples: int
) -> None:
    """Raise ValueError where a run cannot have a fleet of several pools."""
    apart = fleet.pools[0].role != "serve"
    obstacles = {
        f"engine={engine.kind} is one server; use engine=sim": engine.kind != "sim",
        f"task={task} is about one server; use fleet=replicas": task in ("validate", "calibrate", "profile"),
        f"replicas={num_replicas} is for fleet=replicas; give each pool its own": num_replicas > 1,
        f"trace.n={num_samples}: samples of a prompt are not handed over; use trace.n=1": apart and num_samples > 1,
    }
    _refuse(f"fleet.kind={fleet.kind}", obstacles)


def _refuse(setting: str, obstacles: Mapping[str, bool]) -> None:
    """Raise ValueError with the first obstacle that stands."""
    if found := next((text for text, stands in obstacles.items() if stands), None):
        raise ValueError(f"{setting}: {found}")
