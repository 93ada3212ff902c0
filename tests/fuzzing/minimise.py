"""Leaves out of a failing command line what does not matter for the failure."""

from __future__ import annotations

from dataclasses import replace

from tests.fuzzing.walk import Case
from tests.fuzzing.worker import run_cases


def minimised(case: Case, signature: str) -> Case:
    """`case` without the overrides it fails without, in the same way."""
    for text in (*case.overrides, *case.base):
        overrides, base = (tuple(other for other in given if other != text) for given in (case.overrides, case.base))
        smaller = replace(case, overrides=overrides, base=base)
        ((_, outcome),) = run_cases([smaller], num_workers=1)
        if outcome.signature == signature:
            case = smaller
    return case
