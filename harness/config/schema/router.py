"""The rule by which requests are spread over the servers of a fleet."""

from typing import Any

from pydantic import model_validator

from engine.core.planning.policy_options import read_options
from engine.core.routing import find_router
from engine.core.routing.router import Router
from harness.config.schema.base import ConfigModel, Text


class RouterConfig(ConfigModel):
    """The router.

    Attributes:
        rule: which server gets a request when it arrives: round_robin, in turn; least_requests, the one with the fewest
            requests under way; least_tokens, with the fewest prompt tokens in these; prefix_affinity, the one that was
            sent most of the prompt before; or a rule of your own, as package.module:name.
    """

    rule: Text = "round_robin"
    options: dict[str, Any] = {}

    @model_validator(mode="after")
    def _check_options(self) -> "RouterConfig":
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
