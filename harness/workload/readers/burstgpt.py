"""BurstGPT traces (HPMLL/BurstGPT), all versions: columns are found by name."""

from functools import partial

from harness.workload.rows.csv_file import require_columns
from harness.workload.rows.sieve import RowRules, RowSieve
from harness.workload.rows.tabular import build_trace, collect_csv, number_column
from harness.workload.rows.value_checks import times, tokens
from harness.workload.trace import Trace

_FAILED = "failed request (0 tokens)"

_tokens_or_failed = partial(tokens, zero=_FAILED)

# The session ids of version 3 are left out on purpose: its prompts are single messages, not the conversation so far,
# so they must not be taken for prefixes of each other, which is what Trace.session_id promises.
_COLUMNS = (
    number_column("Timestamp", "arrival_time", times),
    number_column("Request tokens", "num_prompt_tokens", _tokens_or_failed),
    number_column("Response tokens", "num_output_tokens", _tokens_or_failed),
)


def read(path: str, rules: RowRules) -> Trace:
    """Reads a trace; rows without tokens are requests that failed. They count as bad rows, but not as damage.

    Raises:
        TraceError: the file cannot be read, is of another format, or has no usable row.
    """
    header = require_columns(path, [column.name for column in _COLUMNS], "a BurstGPT trace")
    sieve = RowSieve(path, rules, expected=[_FAILED])
    columns = collect_csv(path, _COLUMNS, sieve)
    notes = ("Session ID ignored: prompts do not contain the turns before them",) if "Session ID" in header else ()
    return build_trace("burstgpt", columns, sieve, notes=notes)
