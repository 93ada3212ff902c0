"""Profiles of a card from those of a faster one with the same chip, whose kernels take as long in proportion."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from simulator.profile.profile import Profile

_OF_KERNELS = ("tokens", "sequences", "attention", "experts")


@lru_cache(maxsize=16)  # the same object for the same arguments, as cost models keep what they make of it
def slowed(profile: Profile, factor: float) -> Profile:
    """`profile` of one GPU with kernels that take `factor` times as long; times of the host stay."""
    tables = {
        name: table.assign(time_us=factor * table["time_us"]) if name in _OF_KERNELS else table
        for name, table in profile.tables.items()
    }
    return Profile(replace(profile.meta, source={**profile.meta.source, "kernel_times": factor}), tables)
