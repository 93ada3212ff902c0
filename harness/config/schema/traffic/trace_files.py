"""Configuration of traces that are read from a file."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from harness.config.schema.base import ConfigModel, NonNegativeFloat, PositiveInt, Text, within
from harness.config.schema.traffic.lengths import Tokens
from harness.config.schema.traffic.reader import nearest

TRACE_COLUMNS = (
    "request_id", "arrival_time", "num_prompt_tokens", "num_output_tokens", "n", "priority", "tenant", "deadline",
    "session_id", "turn", "think_time", "waits_for", "hash_ids", "hash_block_size", "token_ids",
)  # fmt: skip
MESSAGES = "messages"  # of a line of JSON: texts, whose tokens are counted
TimeUnit = Literal["s", "ms", "us", "ns", "date"]
Delimiter = Literal["comma", "semicolon", "tab", "pipe"]
OnBadRow = Literal["skip", "drop", "error"]

SequenceCount = Annotated[int, within("max_num_seqs")]


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
    on_bad_row: OnBadRow = "skip"

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
