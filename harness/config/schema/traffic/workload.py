"""Configuration of what is asked of the engine: the trace, read from a file or drawn."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PlainSerializer, WrapValidator, model_validator

from harness.config.schema.base import CustomConfig, NonNegativeFloat, PositiveInt, Text
from harness.config.schema.traffic.lengths import LengthsConfig
from harness.config.schema.traffic.trace_files import (
    AzureTrace,
    BailianTrace,
    BasetenTrace,
    BurstGptTrace,
    CsvTrace,
    EveryTrace,
    JsonlTrace,
    MooncakeTrace,
    OnBadRow,
    OtelTrace,
    ServeGenTrace,
    TraceLabTrace,
    WekaTrace,
)
from simulator.quantities import MAX_TOKENS

DEFAULT_SAMPLED_REQUESTS = 4000
MAX_REQUESTS = 100_000_000  # drawn ones; twice as many as the longest public trace has

RequestCount = Annotated[int, Field(ge=1, le=MAX_REQUESTS)]
AUTO_REQUESTS = "auto"  # as a number of requests to draw: as many as metrics.interval needs

DrawnCount = Annotated[
    RequestCount,
    WrapValidator(lambda value, validate: AUTO_REQUESTS if value == AUTO_REQUESTS else validate(value)),
    PlainSerializer(lambda value: value, return_type=Any),
]


class ShareGptTrace(EveryTrace):
    """ShareGPT chats, from a file or drawn from the distributions fitted to them.

    Attributes:
        path: JSON file with texts, or CSV file of lengths; null draws lengths.
        turns: first exchanges only (first), or whole conversations (multi).
        tokenizer: tokenizer.json to count the tokens of texts with, or the folder that holds it.
        num_requests: number of requests to draw without a path; null draws 4000, auto as many as metrics.interval
            needs.
        limit: requests to keep, the earliest ones; null keeps all.
        on_bad_row: leave out rows that cannot be used, up to 1 % of all (skip) or any number (drop), or stop (error).
    """

    kind: Literal["sharegpt"] = "sharegpt"
    path: Text | None = None
    turns: Literal["first", "multi"] = "first"
    tokenizer: Text | None = None
    num_requests: DrawnCount | None = None
    limit: PositiveInt | None = None
    on_bad_row: OnBadRow = "skip"

    @model_validator(mode="before")
    @classmethod
    def _fill_in_sampled_requests(cls, data: Any) -> Any:
        sampled = isinstance(data, dict) and data.get("path") is None and data.get("num_requests") is None
        return data | {"num_requests": DEFAULT_SAMPLED_REQUESTS} if sampled else data

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if self.path is not None and self.num_requests is not None:
            raise ValueError(f"num_requests={self.num_requests}: for the built-in sampler only; with a path use limit")
        if self.path is None and self.tokenizer is not None:
            raise ValueError(f"tokenizer={self.tokenizer!r}: needs a path; the built-in sampler has no texts to count")
        return self


class DrawnClasses(EveryTrace):
    """What schedulers tell requests apart by, drawn for each on its own.

    Attributes:
        priority_shares: of the priorities 0 (the most urgent), 1, 2, ..., such as [0.1, 0.9]; [] gives all the same.
        num_tenants: tenants that send requests.
        tenant_zipf_exponent: the k-th tenant sends in proportion to k ** -tenant_zipf_exponent; 0 makes all send alike.
    """

    priority_shares: Annotated[tuple[Annotated[float, Field(ge=0, le=1e6)], ...], Field(strict=False)] = ()
    num_tenants: RequestCount = 1
    tenant_zipf_exponent: NonNegativeFloat = 0.0

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        if self.priority_shares and not sum(self.priority_shares) > 0:
            raise ValueError("priority_shares: one of them must be > 0")
        return self


class SyntheticTrace(DrawnClasses):
    """Independent requests of drawn lengths (tokens).

    Attributes:
        num_requests: number of requests to draw.
    """

    kind: Literal["synthetic"] = "synthetic"
    num_requests: DrawnCount
    prompt: LengthsConfig
    output: LengthsConfig


class SharedPrefixTrace(DrawnClasses):
    """Prompts that open with one of a few prefixes, followed by `suffix` tokens of their own.

    Attributes:
        num_requests: number of requests to draw.
        num_prefixes: prefixes that prompts open with.
        prefix_tokens: tokens of each prefix.
        zipf_exponent: the k-th prefix is drawn in proportion to k ** -zipf_exponent; 0 makes all equally likely.
    """

    kind: Literal["shared_prefix"] = "shared_prefix"
    num_requests: DrawnCount
    num_prefixes: RequestCount
    prefix_tokens: Annotated[int, Field(ge=16, le=MAX_TOKENS)]
    zipf_exponent: NonNegativeFloat = 0.0
    suffix: LengthsConfig
    output: LengthsConfig


class AgenticTrace(EveryTrace):
    """Sessions of agents that call tools: each request waits for the answer before it and for the tool, and its prompt
    is all that was said before and the tool's result. Some turns start sub-agents, for which the next turn waits.

    Attributes:
        num_requests: number of requests to draw.
        turns: requests of an agent, on average (geometric).
        system_tokens: of the system prompt with the tools, which all prompts begin with.
        task: tokens of the first message of an agent.
        tool_result: tokens that a tool or a sub-agent returns.
        tool_time: s that a tool takes, on average (exponential): the column think_time.
        subagent_share: of the turns, those that start sub-agents.
        num_subagents: that start together.
    """

    kind: Literal["agentic"] = "agentic"
    num_requests: DrawnCount
    turns: Annotated[float, Field(ge=1, le=1e6)]
    system_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)]
    task: LengthsConfig
    tool_result: LengthsConfig
    output: LengthsConfig
    tool_time: NonNegativeFloat
    subagent_share: Annotated[float, Field(ge=0, le=1)]
    num_subagents: Annotated[int, Field(ge=1, le=1000)]


class CustomTrace(EveryTrace, CustomConfig):
    """A trace that a function of the user's own reads or draws: it is given `path`, `rng` and the options, and returns
    the columns of the trace table, as a DataFrame or arrays by name.

    Attributes:
        path: of the file that the function reads; null for a function that draws requests.
        limit: requests to keep, the earliest ones; null keeps all.
        on_bad_row: leave out rows that cannot be used, up to 1 % of all (skip) or any number (drop), or stop (error).
    """

    path: Text | None = None
    limit: PositiveInt | None = None
    on_bad_row: OnBadRow = "skip"


TraceConfig = Annotated[
    ShareGptTrace
    | AzureTrace
    | MooncakeTrace
    | WekaTrace
    | TraceLabTrace
    | OtelTrace
    | BurstGptTrace
    | BailianTrace
    | ServeGenTrace
    | BasetenTrace
    | CsvTrace
    | JsonlTrace
    | SyntheticTrace
    | SharedPrefixTrace
    | AgenticTrace
    | CustomTrace,
    Field(discriminator="kind"),
]
