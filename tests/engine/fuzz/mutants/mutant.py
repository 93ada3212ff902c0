"""A fault that can be put into the scheduling core."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """`old`, which occurs once in `file` of `engine/core`, is replaced by `new`.

    `arguments` are those of the campaign that looks for it: workloads that have nothing of what is faulty are left out.
    """

    name: str
    file: str
    old: str
    new: str
    arguments: tuple[str, ...] = ()
