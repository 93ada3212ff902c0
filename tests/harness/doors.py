"""What tests of the door for Python start from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hydra.core.hydra_config import HydraConfig

FEW = ("trace.num_requests=30", "arrival.rate=20", "cost=roofline")
ROOFLINE = ("cost=roofline", "plots=false")


@pytest.fixture(autouse=True)
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Every test runs in an empty folder. At its end nothing was printed, and the folder is empty."""
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    yield
    HydraConfig.instance().cfg = None
    assert capfd.readouterr() == ("", "")
    assert list(folder.iterdir()) == []


def requests(num: int = 30, **columns: Any) -> pd.DataFrame:
    rng = np.random.default_rng(7)
    lengths = {"num_prompt_tokens": rng.integers(50, 400, num), "num_output_tokens": rng.integers(1, 40, num)}
    return pd.DataFrame({"arrival_time": np.arange(num) * 0.03, **lengths, **columns})
