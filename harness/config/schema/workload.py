"""Configuration of what is asked of the engine: the trace."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PlainSerializer, WrapValidator, model_validator

from harness.config.schema.base import ConfigModel, CustomConfig, NonNegativeFloat, PositiveInt, Text, within
from harness.config.schema.reader import nearest
from simulator.quantities import MAX_TOKENS as MAX_TOKENS

DEFAULT_SAMPLED_REQUESTS = 4000
MAX_REQUESTS = 100_000_000  # drawn ones; twice as many as the longest public trace has

TRACE_COLUMNS = (
    "request_id", "arrival_time", "num_prompt_tokens", "num_output_tokens", "n", "priority", "tenant", "deadline",
    "session_id", "turn", "think_time", "waits_for", "hash_ids", "hash_block_size", "token_ids",
)  # fmt: skip
MESSAGES = "messages"  # of a line of JSON: texts, whose tokens are counted
TimeUnit = Literal["s", "ms", "us", "ns", "date"]
Delimiter = Literal["comma", "semicolon", "tab", "pipe"]

Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
SequenceCount = Annotated[int, within("max_num_seqs")]
RequestCount = Annotated[int, Field(ge=1, le=MAX_REQUESTS)]
AUTO_REQUESTS = "auto"  # as a number of requests to draw: as many as metrics.interval needs

DrawnCount = Annotated[
    RequestCount,
    WrapValidator(lambda value, validate: AUTO_REQUESTS if value == AUTO_REQUESTS else validate(value)),
    PlainSerializer(lambda value: value, return_type=Any),
]


class ConstantLengths(ConfigModel):
    """Every length is `value` tokens."""

    kind: Literal["constant"] = "constant"
    value: Tokens


class UniformLengths(ConfigModel):
    """Whole numbers of tokens from `low` to `high`, both included, equally likely."""

    kind: Literal["uniform"] = "uniform"
    low: Tokens
    high: Tokens

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.high < self.low:
            raise ValueError(f"high={self.high}: must be >= low={self.low}")
        return self


class LognormalLengths(ConfigModel):
    """Lognormal with `mean` and `std` in tokens (not in logarithms), before rounding and clipping to [min, max].

    Attributes:
        mean: tokens.
        std: standard deviation in tokens.
        min: shorter lengths become this one.
        max: longer lengths become this one; null: no upper bound.
    """

    kind: Literal["lognormal"] = "lognormal"
    mean: Annotated[float, Field(ge=1e-3, le=MAX_TOKENS)]
    std: Annotated[float, Field(gt=0, le=MAX_TOKENS)]
    min: Tokens = 1
    max: Tokens | None = None

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"max={self.max}: must be >= min={self.min}")
        return self


LengthsConfig = Annotated[ConstantLengths | UniformLengths | LognormalLengths, Field(discriminator="kind")]


class EveryTrace(ConfigModel):
    """What every trace has.

    Attributes:
        n: output sequences per request, sampled independently; each has the request's number of output tokens.
    """

    n: SequenceCount = 1


class FileTrace(EveryTrace):
    """A trace file.

    Attributes:
        path: of the file.
        limit: requests to keep, the earliest ones; null keeps all.
        window: [from, to] in s after the first request of the file: the requests from then until before then; null
            keeps all.
        on_bad_row: leave out rows that cannot be used, up to 1 % of all (skip) or any number (drop), or stop (error).
    """

    path: Text
    limit: PositiveInt | None = None
    window: Annotated[tuple[NonNegativeFloat, NonNegativeFloat], Field(strict=False)] | None = None
    on_bad_row: Literal["skip", "drop", "error"] = "skip"

    @model_validator(mode="after")
    def _check_window(self) -> Self:
        if self.window and self.window[0] >= self.window[1]:
            raise ValueError(f"window={list(self.window)}: must be [from, to] with from < to")
        return self


class AzureTrace(FileTrace):
    """Azure LLM inference traces of 2023, 2024 and 2025, recognised by their content."""

    kind: Literal["azure"] = "azure"


class MooncakeTrace(FileTrace):
    """Mooncake traces: JSON lines with hash ids of 512-token blocks; and those of AIPerf, with sessions or texts.

    Attributes:
        output_tokens: of answers whose length the file does not tell.
        tokenizer: tokenizer.json to count the tokens of texts with, or the folder that holds it.
    """

    kind: Literal["mooncake"] = "mooncake"
    output_tokens: Tokens | None = None
    tokenizer: Text | None = None


class WekaTrace(FileTrace):
    """Sessions of coding agents with sub-agents (kv-cache-tester): a JSON object each, with hash ids, in a file or a
    folder."""

    kind: Literal["weka"] = "weka"


class TraceLabTrace(FileTrace):
    """TraceLab's rounds of coding agents: JSON lines that say how much of each prompt was cached."""

    kind: Literal["tracelab"] = "tracelab"


class OtelTrace(FileTrace):
    """Spans of OpenTelemetry for generative AI, as inference-perf reads them: a JSON object per session, in a file or a
    folder."""

    kind: Literal["otel"] = "otel"


class BurstGptTrace(FileTrace):
    """BurstGPT traces, of any version, recognised by their header."""

    kind: Literal["burstgpt"] = "burstgpt"


class BailianTrace(FileTrace):
    """Qwen-Bailian traces: JSON lines of conversations with hash ids of 16-token blocks."""

    kind: Literal["bailian"] = "bailian"


class ServeGenTrace(FileTrace):
    """Requests that ServeGen has drawn and saved as CSV."""

    kind: Literal["servegen"] = "servegen"


class BasetenTrace(FileTrace):
    """Baseten's completion traces: Parquet with hashes of the prompts' blocks, sessions and durations."""

    kind: Literal["baseten"] = "baseten"


class ColumnsTrace(FileTrace):
    """A file of the user's own.

    Attributes:
        columns: the trace table's column by the name of the file's, such as {timestamp: arrival_time, prompt_len:
            num_prompt_tokens}; columns with neither name are left out. {} for a file with the trace table's names.
        time_unit: of arrival_time: s, ms, us, ns, or date for dates with times (ISO 8601).
    """

    columns: dict[str, Text] = {}
    time_unit: TimeUnit = "s"

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        for name, ours in self.columns.items():
            if ours not in (known := (*TRACE_COLUMNS, MESSAGES)):
                raise ValueError(f"columns.{name}={ours!r}: choose one of {', '.join(known)}{nearest(ours, known)}")
        return self


class CsvTrace(ColumnsTrace):
    """A CSV file with the columns of the trace table.

    Attributes:
        delimiter: what stands between two columns: comma, semicolon, tab or pipe.
    """

    kind: Literal["csv"] = "csv"
    delimiter: Delimiter = "comma"


class JsonlTrace(ColumnsTrace):
    """JSON lines with the columns of the trace table, token ids and hash ids included, or with messages.

    Attributes:
        hash_block_size: tokens per hash id, for a file with hash_ids and no column that says it.
        tokenizer: tokenizer.json to count the tokens of messages with, or the folder that holds it.
    """

    kind: Literal["jsonl"] = "jsonl"
    hash_block_size: Tokens | None = None
    tokenizer: Text | None = None


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
    on_bad_row: Literal["skip", "drop", "error"] = "skip"


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
    on_bad_row: Literal["skip", "drop", "error"] = "skip"

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
