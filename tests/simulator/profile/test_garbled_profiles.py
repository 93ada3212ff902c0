"""Damaged profiles, ours and those of other tools: an error in one line, or a cost model with possible prices."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simulator.costs.constants import profiled_constants
from simulator.costs.profiled import ProfiledCost
from simulator.importers import open_profile
from simulator.profile.checks import check_units, differences
from simulator.profile.profile import ProfileError
from simulator.profile.profile_folder import save_profile
from tests.mutations import mutants
from tests.simulator.builders import MODEL, OPTIONAL_TABLES, SLOW_LINK, profile, with_tables, work
from tests.simulator.importers.builders import write_bundle, write_profiling

STEPS = [
    work([(0, 100, True)], []),
    work([(0, 3, True), (700, 5000, False)], [10, 3000]),
    work([], [4000]),
    work([], [10, 500, 90] * 30, num_copied_blocks=7),
]


def write_ours(root: Path) -> str:
    measured = profile(token_buckets=(1, 2, 4), tensor_parallel_size=2)
    save_profile(with_tables(measured, **OPTIONAL_TABLES), root / "tp2")
    return str(root)


def write_llmservingsim(root: Path) -> str:
    write_bundle(root)
    (root / "tp1").rename(root / "tp2")
    rows = [(n, n // 2, 0, 0, 100, 300, 200, 10.0, 20.0, 10.0 + n) for n in (2, 8, 64)]
    names = ["n", "nb", "pc", "kp", "kvs", "kv_big", "kv_mean", "t_mean_us", "t_max_us", "t_skew_us"]
    pd.DataFrame(rows, columns=names).to_csv(root / "tp2" / "skew.csv", index=False)
    return f"llmservingsim:{root}"


def write_vidur(root: Path) -> str:
    return f"vidur:{write_profiling(root)}"


WRITERS = {"ours": write_ours, "llmservingsim": write_llmservingsim, "vidur": write_vidur}


def prices(name: str) -> list[int]:
    """What a profile that two ranks share says of a few steps."""
    measured = open_profile(name, MODEL, 2, 256, SLOW_LINK)
    values = {key: constant.default for key, constant in profiled_constants(SLOW_LINK, 2).items()}
    cost = ProfiledCost(measured, MODEL, 2, values)
    check_units(measured, MODEL, SLOW_LINK)
    assert all("\n" not in line for line in differences(measured, MODEL, SLOW_LINK, 16))
    runs = [list(cost.decode_ns(step, 40)) for step in STEPS if not step.chunks]
    return [*map(cost.step_ns, STEPS), *(price for run in runs for price in run)]


def check_mutants(write: Callable[[Path], str], folder: Path, count: int, seed: int) -> int:
    """Reads the profile `count` times with one of its files damaged; returns how often it was refused."""
    name = write(folder / "whole")
    whole = prices(name)
    files = sorted(path.relative_to(folder / "whole") for path in (folder / "whole").rglob("*.*") if path.is_file())
    damage = {path: mutants((folder / "whole" / path).read_bytes(), path.suffix[1:], count, seed) for path in files}
    rng, refused = random.Random(seed), 0
    shutil.copytree(folder / "whole", folder / "damaged")
    for _ in range(count):
        path = rng.choice(files)
        (folder / "damaged" / path).write_bytes(next(damage[path]))
        try:
            found = prices(name.replace(str(folder / "whole"), str(folder / "damaged")))
        except ProfileError as error:
            refused += 1
            assert str(error) and "\n" not in str(error) and len(str(error)) < 600
        else:
            assert len(found) == len(whole) and min(found) >= 1 and max(found) < np.iinfo(np.int64).max
        shutil.copyfile(folder / "whole" / path, folder / "damaged" / path)
    return refused


@pytest.mark.parametrize("tool", WRITERS)
def test_a_damaged_profile_is_refused_in_one_line_or_has_possible_prices(tool: str, tmp_path: Path) -> None:
    refused = check_mutants(WRITERS[tool], tmp_path, 12, 0)
    assert 3 < refused < 12


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("tool", WRITERS)
def test_many_damaged_profiles_are_refused_or_have_possible_prices(tool: str, seed: int, tmp_path: Path) -> None:
    check_mutants(WRITERS[tool], tmp_path, 1000, seed)
