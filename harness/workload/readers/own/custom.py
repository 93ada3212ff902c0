"""Traces that a function of the user's own reads or draws."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from harness.config import CustomTrace
from harness.config.targets import errors_of, find
from harness.errors import ConfigError
from harness.workload.readers.own import frame, plain
from harness.workload.rows.sieve import RowRules
from harness.workload.trace import Trace

_KEY = "trace.target"


def read(config: CustomTrace, rng: np.random.Generator, rules: RowRules) -> Trace:
    """Calls the function and checks what it returns, row by row, as the rows of a file.

    Raises:
        ConfigError: the function fails, is named by a stored configuration only, or returns no requests.
        TraceError: it returns a column that is not one of the trace table, or no usable row.
    """
    function = find(_KEY, config.target)
    with errors_of(_KEY, config.target):
        found = function(path=config.path, rng=rng, **config.options)
        table = pd.DataFrame(found) if isinstance(found, Mapping) else found
    if not isinstance(table, pd.DataFrame):
        kind = type(table).__name__
        raise ConfigError(f"{_KEY}={config.target!r}: returned {kind}; must be a DataFrame, or columns by name")
    for name in plain.REQUIRED:
        if name not in table:
            raise ConfigError(f"{_KEY}={config.target!r}: returned no column {name}")
    name = Path(config.path).stem if config.path else config.target.partition(":")[2]
    return frame.read(table, config.path or config.target, rules, name=name)
