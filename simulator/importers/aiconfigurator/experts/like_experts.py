"""Times of a mixture of experts that was not timed: those of the most alike one that was, scaled by its weights.

Named by `+like_experts` at the end of the name of the database. As in `experts`, T(tokens) is taken from the step of
the other one with as many tokens per expert, and grows with the weights of all experts of a rank, but for the shortest
time of the kernel. The most alike one has the nearest sizes of an expert on a rank, share of experts that a token uses,
and number of experts: the least sum of the logarithms of their ratios, of which the last counts half. How far off such
times are is in `experiments/results/like_experts.json`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from simulator.importers.aiconfigurator.database import Database
from simulator.importers.aiconfigurator.experts.kernels import DISTRIBUTION, dtype_of, stretched
from simulator.importers.aiconfigurator.measured_curve import MeasuredCurve, measured_curve
from simulator.models.experts import Experts
from simulator.models.model import Model
from simulator.profile.profile import ProfileError

_FARTHEST = 1.25  # of that sum: beyond it no experts are alike
_RANKS = (2, 4, 8, 16, 32)
_SHAPE = ["hidden_size", "width", "topk", "num_experts"]


def like_experts(database: Database, model: Model, ranks: int) -> MeasuredCurve:
    """Time of a layer's experts over tokens; raises ProfileError where none are alike."""
    rows = timed_rows(database, model)
    rows = rows[rows["moe_ep_size"] == 1]
    return _like(database, model, rows, ranks)


def whole_like_experts(database: Database, model: Model) -> pd.DataFrame | None:
    """The same where ranks share out whole experts, by ranks and the tokens of all; None where none are alike."""
    timed = timed_rows(database, model)
    parts = []
    for ranks in _RANKS:
        rows = timed[(timed["moe_tp_size"] == 1) & (timed["moe_ep_size"] == ranks)]
        try:
            thin = _like(database, model, rows, 1).thinned()
        except ProfileError:
            continue
        parts.append(pd.DataFrame({"num_ranks": ranks, "num_tokens": thin.sizes, "time_us": thin.times_us}))
    return pd.concat(parts, ignore_index=True) if parts else None


def timed_rows(database: Database, model: Model) -> pd.DataFrame:
    """All rows of the format of the experts, with the width of an expert on a rank."""
    rows = database.rows("moe", "moe_perf", moe_dtype=dtype_of(model), distribution=DISTRIBUTION)
    if rows.empty:
        raise ProfileError(f"{database.system}/{database.version} has no experts in {dtype_of(model)}")
    return rows.assign(width=rows["inter_size"] // rows["moe_tp_size"])


def _like(database: Database, model: Model, rows: pd.DataFrame, ranks: int) -> MeasuredCurve:
    block = model.first(Experts)
    if block is None:
        raise ProfileError(f"{model.name} has no experts")
    width = block.intermediate_size // ranks
    shapes = rows[_SHAPE].drop_duplicates().to_numpy()
    if not len(shapes):
        raise ProfileError(f"{database.system}/{database.version} has no experts of so many GPUs")
    hidden, widths, used, numbers = shapes.T.astype(float)
    share = block.num_used / block.num_experts
    distances = np.abs(np.log(hidden * widths / (model.hidden_size * width)))
    distances += np.abs(np.log(used / numbers / share)) + 0.5 * np.abs(np.log(numbers / block.num_experts))
    nearest = int(np.argmin(distances))
    if distances[nearest] > _FARTHEST:
        raise ProfileError(f"{database.system}/{database.version} has no experts like those of {model.name}")
    same = rows[(rows[_SHAPE] == shapes[nearest]).all(axis=1)]
    timed, _ = measured_curve(same, "num_tokens")
    weights = block.num_experts * model.hidden_size * width
    ratio = weights / (numbers * hidden * widths)[nearest]
    return stretched(timed, float(rows["time_us"].min()), ratio, share / (used / numbers)[nearest])
