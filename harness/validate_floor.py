"""How well the times of single steps can be known at all: equal steps differ, within a run and from repeat to repeat.

Decode steps are put into cells of equal batch size and of contexts within a tenth. The median of a cell predicts its
steps better than any cost model could that knows the plan alone, so its error is the noise floor of a cost model's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

_CONTEXT_RATIO = 1.1
_FEWEST = 5  # steps that make a median
_CELL = ["num_decode_seqs", "context"]


def decode_noise(steps: pd.DataFrame, repeats: Sequence[pd.DataFrame]) -> dict[str, float]:
    """MAPE in percent of the decode steps of a run against the medians of their cells, from `steps` tables of runs.

    own_mape_pct: medians of the run itself, which flatters a little, as each step is among those that predict it;
    repeats_mape_pct: medians of all steps of the repeats together, absent without repeats. Steps whose cell holds few
    others are left out; `count` are those that count in the first.
    """
    found: dict[str, float] = {}
    mine = _decodes(steps)
    for name, tables in (("own", [mine]), ("repeats", [_decodes(table) for table in repeats])):
        if not tables:
            continue
        cells = pd.concat(tables).groupby(_CELL)["duration"].agg(["median", "size"])
        medians = cells.loc[cells["size"] >= _FEWEST, "median"]
        joined = mine.join(medians, on=_CELL, how="inner")
        if joined.empty:
            continue
        found.setdefault("count", len(joined))
        found[f"{name}_mape_pct"] = float(100 * (joined["median"] / joined["duration"] - 1).abs().mean())
    return found


def _decodes(steps: pd.DataFrame) -> pd.DataFrame:
    alone = steps[(steps["num_prefill_seqs"] == 0) & (steps["num_context_tokens"] > 0)]
    context = np.rint(np.log(alone["num_context_tokens"].to_numpy()) / np.log(_CONTEXT_RATIO))
    return alone.assign(context=context)[[*_CELL, "duration"]]
