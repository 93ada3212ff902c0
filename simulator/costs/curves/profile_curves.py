"""A profile's tables as curves over the sizes of a step, in ns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from simulator.costs.constants import ALL_REDUCE_MIB, MIB, all_reduce_name
from simulator.costs.curves.curve import Curve, flat, proportional
from simulator.models.model import Model
from simulator.profile.profile import Profile
from simulator.table import Table, groups

_US = 1e3  # ns


class Operators(NamedTuple):
    """The operators of a table.

    Attributes:
        curves: for each operator the time of all its calls in a step, ns.
        end: the size up to which all of them were measured.
    """

    curves: list[Curve]
    end: float

    def total(self, size: int, *, round_up: bool) -> float:
        return sum(curve.next_point(size) if round_up else curve(size) for curve in self.curves)


def operators(profile: Profile, name: str, axis: str) -> Operators:
    """The operators of the table `name`, which is "tokens" or "sequences", over its `axis`."""
    curves = [
        proportional(group[axis].tolist(), group["time_us"].tolist()).scaled(profile.meta.calls[operator] * _US)
        for operator, group in groups(profile.rows[name], "operator")
    ]
    return Operators(curves, min(curve.end for curve in curves))


def curve_of(table: Table | None, axis: str) -> Curve | None:
    """Times over an axis; beyond the last point they grow in proportion."""
    if table is None:
        return None
    return proportional(table[axis].tolist(), (table["time_us"] * _US).tolist())


def rest_of(table: Table | None) -> dict[str, Curve] | None:
    """For each kind of step its time beyond its operators; a kind that was not measured takes the curve of another."""
    if table is None:
        return None
    curves = {
        kind: flat(group["num_tokens"].tolist(), (group["time_us"] * _US).tolist())
        for kind, group in groups(table, "kind")
    }
    stand_ins = {"decode": ("mixed", "prefill"), "mixed": ("prefill", "decode"), "prefill": ("mixed", "decode")}
    return {
        kind: next(curves[name] for name in (kind, *others) if name in curves) for kind, others in stand_ins.items()
    }


def unused_constants(tables: Mapping[str, Table]) -> frozenset[str]:
    """Constants without effect: the tables hold the times that they stand for, or no times that they scale."""
    attention = tables["attention"]
    names = [all_reduce_name(mib) for mib in ALL_REDUCE_MIB] if "all_reduce" in tables else []
    if not ((attention["prefill_tokens"] > 0) & (attention["num_decodes"] > 0)).any():
        names.append("mixing_factor")
    return frozenset(names)


def all_reduce_of(profile: Profile, model: Model, tensor_parallel_size: int, values: Mapping[str, float]) -> Curve:
    """The time of all all-reduces of a step, over its tokens, ns."""
    if tensor_parallel_size == 1:
        return flat([0.0], [0.0])
    table = profile.rows.get("all_reduce")
    if table is not None:
        sizes, times = table["num_bytes"].tolist(), table["time_us"].tolist()
    else:
        sizes = [mib * MIB for mib in ALL_REDUCE_MIB]
        times = [values[all_reduce_name(mib)] for mib in ALL_REDUCE_MIB]
    # If noise or a fit made the last times fall, times beyond them grow in proportion nevertheless.
    is_growing = len(sizes) > 1 and times[-1] >= times[-2]
    tail = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2]) if is_growing else times[-1] / sizes[-1]
    token_bytes = model.hidden_size * model.dtype_bytes
    calls_us = (model.num_blocks + 1) * _US
    return Curve(
        [size / token_bytes for size in sizes], [calls_us * time for time in times], calls_us * tail * token_bytes
    )
