"""task=validate with a calibration: what its constants were fitted on, and for which system."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.measured import load_measured
from tests.harness.measured.builders import (
    compare,
    fitted_on,
    made_up,
    write_distserve,
)


@pytest.mark.long
def test_constants_fitted_on_what_is_scored_are_called_so(tmp_path: Path) -> None:
    path = write_distserve(tmp_path / "m.exp", made_up())
    other = write_distserve(tmp_path / "n.exp", made_up().assign(num_prompt_tokens=9))
    fitted = tmp_path / "calibration.yaml"
    overrides = [f"cost.calibration={fitted}"]

    def scored(name: Path, part: str, score: str) -> bool:
        sha = compare(f"distserve:{path}", tmp_path / "out")["measured"]["data_sha256"]
        fitted_on(fitted, data_sha256=sha, part=part)
        found = compare(f"distserve:{name}", tmp_path / "out", *overrides, f"validation.score={score}")
        assert found["calibration"]["part"] == part
        return bool(found["scored_on_fitted_data"])

    assert scored(path, "all", "all") and scored(path, "first_half", "first_half")
    assert scored(path, "first_half", "all") and scored(path, "all", "second_half")
    assert not scored(path, "first_half", "second_half") and not scored(other, "all", "all")


def test_a_repeat_that_was_fitted_on_is_scored_too(tmp_path: Path) -> None:
    table = made_up()
    one = f"distserve:{write_distserve(tmp_path / 'm.exp', table)}"
    other = f"distserve:{write_distserve(tmp_path / 'n.exp', table.assign(finish_time=table['finish_time'] + 1))}"
    fitted = fitted_on(tmp_path / "calibration.yaml", data_sha256=load_measured(one).data_sha256())
    settings = [f"cost.calibration={fitted}"]
    assert not compare(other, tmp_path / "out", *settings)["scored_on_fitted_data"]
    assert compare(other, tmp_path / "out", *settings, f"validation.repeats=[{one}]")["scored_on_fitted_data"]


def test_constants_fitted_on_another_run_of_the_same_requests_are_called_so(tmp_path: Path) -> None:
    path = write_distserve(tmp_path / "m.exp", made_up())
    other = write_distserve(tmp_path / "n.exp", made_up().assign(num_prompt_tokens=9))
    sha = load_measured(f"distserve:{path}").requests_sha256()

    def is_warned(measured: Path, score: str, **on: Any) -> bool:
        settings = [f"cost.calibration={fitted_on(tmp_path / 'calibration.yaml', **on)}", f"validation.score={score}"]
        found = compare(f"distserve:{measured}", tmp_path / "out", *settings)
        assert not found["scored_on_fitted_data"]
        return any("was fitted on another run of the requests" in warning for warning in found["warnings"])

    assert is_warned(path, "all", requests_sha256=sha)
    assert is_warned(path, "first_half", requests_sha256=sha)
    assert not is_warned(path, "second_half", requests_sha256=sha, part="first_half")
    assert not is_warned(other, "all", requests_sha256=sha) and not is_warned(path, "all")


@pytest.mark.parametrize(
    ("system", "warning"),
    [
        ({}, None),
        ({"model": "qwen3-8b", "device": "NVIDIA H100 80GB HBM3", "profile": None, "tensor_parallel_size": 1}, None),
        ({"model": "a/b"}, "fitted with model=a/b; simulated here: model=Qwen/Qwen3-8B"),
        (
            {"device": "A100", "tensor_parallel_size": 2},
            "fitted with device=A100, tensor_parallel_size=2; simulated here: device=NVIDIA H100 80GB HBM3, "
            "tensor_parallel_size=1",
        ),
        ({"profile": "x"}, "fitted with profile=x; simulated here: profile=None"),
    ],
    ids=str,
)
@pytest.mark.sample(3)
def test_constants_of_another_system_are_called_so(system: dict[str, Any], warning: str | None, tmp_path: Path) -> None:
    path = write_distserve(tmp_path / "m.exp", made_up())
    fitted = fitted_on(tmp_path / "calibration.yaml", **system)
    found = compare(f"distserve:{path}", tmp_path / "out", f"cost.calibration={fitted}", "cost.other_device=true")
    expected = [] if warning is None else [f"{fitted}: {warning}"]
    assert [each for each in found["warnings"] if "fitted with" in each] == expected
