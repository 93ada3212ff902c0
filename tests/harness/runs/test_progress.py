"""What the progress bar says of a simulation and of a real run."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from harness.runs.progress import clock_text, progress_bar
from harness.runs.recorder import Recorder


@pytest.fixture
def recorder() -> Recorder:
    """Of a run that is 90 s old and has served 30 requests."""
    recorder = Recorder()
    recorder._last_step, recorder.num_done = (80_000_000_000, np.full(10, 10**9)), 30
    return recorder


@pytest.mark.parametrize(
    ("simulated", "elapsed_s", "text"),
    [
        (True, 3.0, "simulated 90.0 s  30x real time, 10 requests/s"),
        (True, 0.0, "simulated 90.0 s"),
        (False, 90.0, "served for 90.0 s  0 requests/s"),
        (False, 2.0, "served for 90.0 s  15 requests/s"),
    ],
)
def test_only_a_simulation_is_called_simulated(
    recorder: Recorder, simulated: bool, elapsed_s: float, text: str
) -> None:
    assert clock_text(recorder, elapsed_s, simulated=simulated) == text


@pytest.mark.parametrize("simulated", [True, False])
def test_the_bar_ends_with_the_last_numbers(recorder: Recorder, simulated: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with progress_bar(recorder, 40, simulated=simulated, enabled=True, console=console):
        recorder.num_done = 40
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "40/40" in shown and ("simulated" in shown) is simulated


def test_no_bar_without_a_terminal(recorder: Recorder) -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    with progress_bar(recorder, 40, simulated=True, enabled=True, console=console):
        pass
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]
