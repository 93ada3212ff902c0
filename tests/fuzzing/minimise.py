"""Leaves out of a failing command line what does not matter for the failure."""

from __future__ import annotations

from dataclasses import replace

from tests.fuzzing.walk import Case
from tests.fuzzing.worker import run_cases


def minimised(case: Case, signature: str) -> Case:
    """`case` without the overrides it fails without, in the same way."""
    for field in ("overrides", "base"):
        for text in getattr(case, field):
            left = tuple(other for other in getattr(case, field) if other != text)
            smaller = replace(case, **{field: left})
            ((_, outcome),) = run_cases([smaller], num_workers=1)
            if outcome.signature == signature:
                case = smaller
    return case
