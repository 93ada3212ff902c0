"""Faults in fleets are noticed; all of them take minutes, that they still fit the code takes none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulator.fleets.mutants import MUTANTS, ROOT, FleetMutant, copied, is_caught


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_no_mutant_of_fleets_is_out_of_date(mutant: FleetMutant) -> None:
    assert (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1


@pytest.mark.slow
def test_the_tests_of_fleets_notice_every_mutant(tmp_path: Path) -> None:
    copied(tmp_path)
    assert [mutant.name for mutant in MUTANTS if not is_caught(mutant, tmp_path)] == []
