"""Calibration files: their constants replace those of the device, and other files are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.engines.resolving import calibration_files as calibration
from harness.engines.resolving.system import resolve
from harness.errors import ConfigError
from harness.results.stored.files import read_results
from tests.harness.builders import config, execute_in

WORK = ["trace.num_requests=40", "arrival.rate=25", "max_num_batched_tokens=512", "max_num_seqs=64"]
TRUTH = {"memory_efficiency": 0.61, "flops_efficiency": 0.43, "step_overhead_s": 0.0031}
TRUE = [f"device.{name}={value}" for name, value in TRUTH.items()]


def test_a_calibration_replaces_the_constants_of_the_device(tmp_path: Path) -> None:
    on = {"measured": "x", "data_sha256": "0", "part": "all", "num_requests": 1}
    path = tmp_path / "calibration.yaml"
    calibration.write(path, {"constants": TRUTH, "cost": "roofline", "fitted_on": on})
    for name, overrides in (("a", TRUE), ("b", [f"cost.calibration={path}"])):
        execute_in(tmp_path / name, config("progress=false", *WORK, *overrides))
    one, other = (read_results(tmp_path / name)[0].requests for name in "ab")
    assert one.equals(other)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("constants: {a: 1}", "not a calibration.yaml of task=calibrate"),
        (
            "constants: {a: x}\nfitted_on: {measured: x, data_sha256: x, part: all, num_requests: 1}",
            "not a calibration",
        ),
        ("- 1", "not a calibration.yaml of task=calibrate"),
        ("a: [", "not YAML: "),
        (
            "cost: roofline\nconstants: {a: 1}\nfitted_on: {measured: x, data_sha256: x, part: all, num_requests: 1}",
            "fitted for cost=roofline with a; cost=roofline has memory_efficiency",
        ),
        (
            "cost: profiled\nconstants: {}\nfitted_on: {measured: x, data_sha256: x, part: all, num_requests: 1}",
            "fitted for cost=profiled",
        ),
    ],
)
def test_files_that_are_no_calibration_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "calibration.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        resolve(config(f"cost.calibration={path}"))
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        resolve(config(f"cost.calibration={path}x"))
