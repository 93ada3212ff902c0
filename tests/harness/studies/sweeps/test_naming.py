"""Names of the folders of jobs: unique, of what the sweep varies, and stable when the sweep is extended."""

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given
from hypothesis import strategies as st

from harness.errors import ConfigError
from harness.studies.sweeps.naming import job_folder, names_of, number_of_jobs, split, width_of_names

KEYS = ["block_size", "seed", "max_num_seqs", "arrival.rate", "scheduler", "trace.path"]
VALUES = st.lists(st.integers(1, 99).map(str), min_size=1, max_size=2, unique=True)
SWEEPS = st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=4)


def jobs_of(sweep: Mapping[str, list[str]], earlier: Mapping[str, Any] | None = None) -> dict[str, dict[str, str]]:
    """The jobs of a sweep by the names of their folders, when `earlier` is what the first sweep there left."""
    overrides = OverridesParser.create().parse_overrides([f"{key}={','.join(sweep[key])}" for key in sweep])
    named = names_of(*split(overrides, ["plots"]), earlier)
    jobs = [dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())]
    names = [job_folder(",".join(sorted(f"{key}={job[key]}" for key in job if key in named))) for job in jobs]
    assert len(set(names)) == len(jobs) == number_of_jobs(overrides)  # unique
    return dict(zip(names, jobs, strict=True))


def record_of(sweep: Mapping[str, list[str]]) -> dict[str, Any]:
    varied = {key for key, values in sweep.items() if len(values) > 1} or sweep.keys()
    return {"varied": sorted(varied), "fixed": {k: f"{k}={v[0]}" for k, v in sweep.items() if k not in varied}}


@given(SWEEPS)
def test_only_what_varies_names_a_folder(sweep: dict[str, list[str]]) -> None:
    varied = {key for key, values in sweep.items() if len(values) > 1} or sweep.keys()
    for name, job in jobs_of(sweep).items():
        assert name == ",".join(f"{key}={job[key]}" for key in sorted(varied))


@given(SWEEPS, SWEEPS)
def test_an_extended_sweep_finds_its_folders_and_shares_none_with_other_jobs(
    first: dict[str, list[str]], more: dict[str, list[str]]
) -> None:
    """The second sweep has the keys of the first one, some with further values, in another order."""
    second = {key: list(dict.fromkeys([*first.get(key, []), *more.get(key, [])])) for key in reversed([*first, *more])}
    before, after = jobs_of(first), jobs_of(second, record_of(first))
    for name in before.keys() & after.keys():  # a folder means the same job: all keys that the first sweep had agree
        assert all(after[name][key] == value for key, value in before[name].items())
    if {key for key in second if len(second[key]) > 1} <= set(
        record_of(first)["varied"]
    ) and second.keys() == first.keys():
        assert before.keys() <= after.keys()


@given(SWEEPS, st.sampled_from(KEYS), st.integers(100, 200).map(str))
def test_another_fixed_value_has_folders_of_its_own(sweep: dict[str, list[str]], key: str, value: str) -> None:
    """Results of an earlier sweep in the folder are not replaced by those of another configuration."""
    assert not jobs_of(sweep).keys() & jobs_of({**sweep, key: [value]}, record_of(sweep)).keys()


def test_a_fixed_value_that_is_left_out_is_refused() -> None:
    earlier = record_of({"block_size": ["16", "32"], "arrival.rate": ["5"]})
    with pytest.raises(ConfigError, match=r"^hydra\.sweep\.dir: the sweep in this folder has arrival\.rate=5; "):
        jobs_of({"block_size": ["16", "64"]}, earlier)


@given(st.lists(st.text(max_size=40), min_size=2, max_size=2, unique=True))
@example(["", "\u4e2d" * 300])  # three bytes a character
@example(["a/b", "c/b"])
def test_different_overrides_have_different_folders(values: list[str]) -> None:
    first, second = (job_folder(f"key={value}") for value in values)
    assert first != second
    for name in (first, second):
        assert 0 < len(name.encode()) <= 255
        assert "/" not in name


def test_of_paths_the_last_part_is_shown() -> None:
    name = job_folder("block_size=16,trace.path=/data/traces/mine.csv")
    assert name.startswith("block_size=16,trace.path=mine.csv-")


def test_the_number_of_jobs_and_the_width_of_their_names() -> None:
    lines = ["block_size=16,256", "seed=range(0,3)", "arrival.rate=2", "plots=false,true"]
    overrides = OverridesParser.create().parse_overrides(lines)
    assert number_of_jobs(overrides) == 12
    assert width_of_names(overrides, ["plots"]) == len("block_size=256,seed=0")
    assert number_of_jobs(OverridesParser.create().parse_overrides(["gpu=interval(0,1)"])) is None
