"""Azure LLM inference traces of 2023, 2024 and 2025 (Azure/AzurePublicDataset)."""

from harness.workload.rows.csv_file import require_columns
from harness.workload.rows.sieve import RowRules, RowSieve
from harness.workload.rows.tabular import CsvColumn, build_trace, collect_csv, number_column
from harness.workload.rows.text_checks import timestamps
from harness.workload.rows.value_checks import tokens
from harness.workload.trace import Trace

_COLUMNS = (
    CsvColumn("TIMESTAMP", "arrival_time", timestamps),
    number_column("ContextTokens", "num_prompt_tokens", tokens),
    number_column("GeneratedTokens", "num_output_tokens", tokens),
)

_IMAGES_IGNORED = "NumImages ignored: requests are replayed as text of ContextTokens tokens"


def read(path: str, rules: RowRules) -> Trace:
    """Reads any of the three formats; they differ in how a time is written and in the column NumImages.

    Raises:
        TraceError: the file cannot be read, is of another format, or has no usable row.
    """
    header = require_columns(path, [column.name for column in _COLUMNS], "an Azure LLM trace")
    sieve = RowSieve(path, rules)
    columns = collect_csv(path, _COLUMNS, sieve)
    notes = (_IMAGES_IGNORED,) if "NumImages" in header else ()
    return build_trace("azure", columns, sieve, ticks_per_second=10**9, notes=notes)
