"""Profiles of ranks that share out whole experts, from those of ranks that have a part of every expert."""

from __future__ import annotations

from dataclasses import replace

from simulator.profile.profile import Profile
from simulator.table import stacked

_NOTHING_US = 1e-3


def with_whole_experts(profile: Profile, num_ranks: int, *, apart: bool) -> Profile | None:
    """`profile` for ranks of which `num_ranks` share out the experts; None where those were not timed.

    Args:
        apart: the experts are priced apart from the steps, since they get the tokens of other ranks, too
            (`simulator.costs.ranks`); what the ranks exchange must have been timed.
    """
    needed = ("experts", "exchange") if apart else ("experts",)
    if any(name not in profile.rows or num_ranks not in profile.rows[name]["num_ranks"] for name in needed):
        return None
    tokens, table = profile.rows["tokens"], profile.rows["experts"]
    if apart:
        experts = tokens[tokens["operator"] == "experts"].assign(time_us=_NOTHING_US)
    else:
        experts = table[table["num_ranks"] == num_ranks].without("num_ranks").assign(operator="experts")
    tokens = stacked([tokens[tokens["operator"] != "experts"], experts])
    source = {**profile.meta.source, "expert_ranks": num_ranks}
    return Profile(replace(profile.meta, source=source), {**profile.rows, "tokens": tokens})
