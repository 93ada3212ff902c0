"""The rule by which requests are spread over the servers of a fleet, and what servers can be pipelines."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from engine.core.planning.policy_options import read_options
from engine.core.routing import find_router
from engine.core.routing.router import Router
from harness.config.schema.base import ConfigModel, Text
from harness.config.schema.system import CostConfig, EngineConfig, SchedulerConfig
from harness.config.schema.tiers import TiersConfig


class RouterConfig(ConfigModel):
    """The router.

    Attributes:
        rule: which server gets a request when it arrives: round_robin, in turn; random; least_requests, the one with
            the fewest requests under way; least_tokens, with the fewest prompt tokens in these; power_of_two, the less
            busy of two that are drawn; session_affinity, the one of the conversation; prefix_affinity, the one that was
            sent most of the prompt before; weighted_score, the highest sum of scores, as in
            llm-d's endpoint picker; or a rule of your own, as package.module:name.
        options: settings of the rule's own.
        view_delay_ms: the router reads what servers tell of themselves (queue, batch, free KV blocks) every so many ms;
            0: it always knows. What it has sent itself it always knows.
    """

    rule: Text = "round_robin"
    options: dict[str, Any] = {}
    view_delay_ms: Annotated[float, Field(ge=0, le=3_600_000)] = 0.0

    @model_validator(mode="after")
    def _check_options(self) -> "RouterConfig":
        self.make()
        if 0 < self.view_delay_ms < 1:
            raise ValueError(f"view_delay_ms={self.view_delay_ms}: must be 0 or >= 1")
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
        "a pipeline has no link to the host's memory; use tiers=none": bool(tiers.host.gib),
        "cost=linear does not tell what a layer takes; use cost=profiled or cost=roofline": cost.kind == "linear",
        "each step is planned on its own; use engine.max_lookahead_steps=1": engine.max_lookahead_steps > 1,
    }
    if num_stages > 1 and (found := next((text for text, stands in obstacles.items() if stands), None)):
        raise ValueError(f"pipeline_parallel_size={num_stages}: {found}")
