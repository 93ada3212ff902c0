"""What the progress bar says of a simulation and of a real run."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from harness.record.progress_bar import clock_text, progress_bar
from harness.record.record import Record
from harness.record.recorder import Recorder


@pytest.fixture
def recorder() -> Recorder:
    """Of a run that is 90 s old and has served 30 requests."""
    recorder = Recorder()
    recorder._log.last_start_ns, recorder._log.last_ns, recorder.num_done = 80_000_000_000, np.full(10, 10**9), 30
    return recorder


@pytest.mark.parametrize(
    ("simulated", "elapsed_s", "text"),
    [
        (True, 3.0, "simulated 90 s at 30x"),
        (True, 0.0, "simulated 90 s"),
        (False, 90.0, "served for 90.0 s"),
    ],
)
def test_only_a_simulation_is_called_simulated(
    recorder: Recorder, simulated: bool, elapsed_s: float, text: str
) -> None:
    assert clock_text(Record([recorder]), elapsed_s, simulated=simulated) == text


@pytest.mark.parametrize("simulated", [True, False])
def test_the_bar_ends_with_the_last_numbers(recorder: Recorder, simulated: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    recorder._log.last_start_ns, recorder._log.last_ns = 10**12, np.full(10, 10**9)  # 17 minutes
    with progress_bar(Record([recorder]), 100_000, simulated=simulated, enabled=True, console=console):
        recorder.num_done = 100_000
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "100,000/100,000" in shown and ("simulated" in shown) is simulated
    assert "…" not in shown  # all of it fits 80 columns


def test_no_bar_without_a_terminal(recorder: Recorder) -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    with progress_bar(Record([recorder]), 40, simulated=True, enabled=True, console=console):
        pass
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]
