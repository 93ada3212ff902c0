"""Runs the Triton tests in Triton's interpreter, in separate processes: one process cannot also compile kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import numpy as np  # noqa: E402

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.parametrize(
    ("modules", "loops", "marked"),
    [
        (
            [
                "test_triton_kernels",
                "linear/test_triton_fp8",
                "experts/test_triton_fp8_experts",
                "cache/test_rotary_store",
                "cache/test_latent_store",
            ]
            + ["sampling/test_keep_threshold", "experts/test_moe_routing"],
            False,
            "not slow",
        ),
        (["attention/test_triton_attention", "test_triton_engine"], True, "not slow"),
        pytest.param(["attention/test_random_attention"], True, "slow", marks=pytest.mark.slow),
    ],
    ids=["kernels", "attention", "random attention"],
)
def test_in_interpreter(modules: list[str], loops: bool, marked: str) -> None:
    old = tuple(map(int, triton.__version__.split(".")[:2])) <= (3, 6)
    if loops and old and np.lib.NumpyVersion(np.__version__) >= "2.4.0":
        pytest.skip("the interpreter of triton 3.6 cannot loop to a bound known at run time with numpy 2.4")
    files = [f"tests/kernels/{module}.py" for module in modules]
    alone = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--confcutdir=tests/kernels"]  # imports less
    of_cublas = ["-k", "not many_tokens_of_blocks"]  # which is on GPUs only
    command = [sys.executable, "-m", "pytest", "-q", "-x", *alone, *of_cublas, "-m", marked, *files]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    # Without this variable the inner pytest does not take itself for a worker of pytest-xdist.
    environment.pop("PYTEST_XDIST_WORKER", None)
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1200)
    report = run.stdout[-4000:] + run.stderr[-2000:]
    assert run.returncode == 0, report
    assert " passed" in run.stdout and "skipped" not in run.stdout, report
