"""What was recorded of a server, of which the tables of a run are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.record.span_log import SpanLog
from harness.record.step_columns import StepLog
from harness.results.tables import Gaps


class Recorded(NamedTuple):
    """What was recorded of a server; requests are told by their rows in the trace.

    Attributes:
        request_rows: a row per request that was seen, with `REQUEST_COLUMNS`: int64[n, columns].
        errors: why requests were refused.
        lags: how much later than intended requests were issued, in ns.
        prompts: when prompts ended that are decoded elsewhere, in ns.
        parked_ns: how long sequences of a request were parked, in sum.
        gaps: between tokens.
        steps: what the table of steps is made of.
        spans: what each sequence did when; None where it was not recorded.
    """

    request_rows: NDArray[np.int64]
    errors: Mapping[int, str]
    lags: Mapping[int, int]
    prompts: Mapping[int, int]
    parked_ns: Mapping[int, int]
    gaps: Gaps
    steps: StepLog
    spans: SpanLog | None
