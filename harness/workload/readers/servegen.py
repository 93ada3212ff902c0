"""Requests that ServeGen (alibaba/ServeGen) has drawn from clients of a production service and saved as CSV."""

from harness.workload.rows.csv_file import require_columns
from harness.workload.rows.sieve import RowRules, RowSieve
from harness.workload.rows.tabular import build_trace, collect_csv, number_column
from harness.workload.rows.value_checks import times, tokens
from harness.workload.trace import Trace

_COLUMNS = (
    number_column("timestamp", "arrival_time", times),
    number_column("input_tokens", "num_prompt_tokens", tokens),
    number_column("output_tokens", "num_output_tokens", tokens),
)


def read(path: str, rules: RowRules) -> Trace:
    """Reads a file of `save_requests_to_csv`; its times are in seconds.

    Raises:
        TraceError: the file cannot be read, is of another format, or has no usable row.
    """
    names = [column.name for column in _COLUMNS]
    header = require_columns(path, names, "requests of ServeGen")
    sieve = RowSieve(path, rules)
    others = [name for name in header if name not in ("request_id", *names)]
    note = f"{', '.join(others)} ignored: requests are replayed as text of input_tokens and output_tokens tokens"
    columns = collect_csv(path, _COLUMNS, sieve)
    return build_trace("servegen", columns, sieve, notes=(note,) if others else ())
