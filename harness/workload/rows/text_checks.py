"""Checks of values that a trace file has as text, as columns of pyarrow; `value_checks` has those of numbers."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness.workload.rows.sieve import RowSieve
from harness.workload.rows.value_checks import Numbers

_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_NANOSECONDS = r"^-?(\d{1,18}|[1-8]\d{18})$"  # of an int64
_TIMESTAMP = r"^(19|20)\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)?$"


def numbers_from_text(texts: pa.ChunkedArray) -> Numbers:
    """Reads numbers from text without blanks around it; `NA`, `nan`, `inf`, `1_000` and `0x1` are no numbers."""
    readable = pc.if_else(pc.match_substring_regex(texts, _NUMBER), texts, None)
    values = pc.cast(readable, pa.float64()).to_numpy(zero_copy_only=False)
    return Numbers(values, pc.equal(texts, "").to_numpy(zero_copy_only=False))


def nanoseconds(texts: pa.ChunkedArray, name: str, sieve: RowSieve) -> npt.NDArray[np.int64]:
    """Whole numbers of nanoseconds, read exactly: int64. Since 1970 they are more than a float64 tells apart."""
    sieve.reject(pc.equal(texts, "").to_numpy(zero_copy_only=False), f"{name} is missing")
    readable = pc.match_substring_regex(texts, _NANOSECONDS)
    sieve.reject(~readable.to_numpy(zero_copy_only=False), f"{name} is not a whole number of nanoseconds")
    values: npt.NDArray[np.int64] = pc.cast(pc.if_else(readable, texts, "0"), pa.int64()).to_numpy()
    return values


def are_dates(texts: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Which texts are ISO 8601 dates with times: bool."""
    dates: npt.NDArray[np.bool_] = pc.match_substring_regex(texts, _TIMESTAMP).to_numpy(zero_copy_only=False)
    return dates


def timestamps(texts: pa.ChunkedArray, name: str, sieve: RowSieve) -> npt.NDArray[np.int64]:
    """ISO 8601 dates with times, up to 9 fractional digits, read exactly: int64 nanoseconds since 1970."""
    sieve.reject(pc.equal(texts, "").to_numpy(zero_copy_only=False), f"{name} is missing")
    import pandas as pd  # imported late, as other columns do without it

    readable = pc.if_else(pc.match_substring_regex(texts, _TIMESTAMP), texts, None).to_pandas()
    parsed = pd.to_datetime(readable, format="ISO8601", utc=True, errors="coerce").astype("datetime64[ns, UTC]")
    sieve.reject(parsed.isna().to_numpy(), f"{name} is not a date with a time")
    return parsed.astype(np.int64).to_numpy()
