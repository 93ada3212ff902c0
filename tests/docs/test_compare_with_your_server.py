"""The commands of "Compare with your own server", against the server that one of them starts."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pandas as pd
import pytest
from hydra.core.hydra_config import HydraConfig

from harness import cli
from tests.docs.pages import commands
from tests.harness.engines.serving.builders import serving

PAGE = "compare_with_your_server.md"
SMALL = ("trace=synthetic", "trace.num_requests=20", "arrival.rate=40", "plots=false", "progress=false")


SHORT = [
    f"{key}={value}"
    for part, length in (("prompt", 24), ("output", 6))
    for key, value in ((f"trace/lengths@trace.{part}", "constant"), (f"trace.{part}.value", length))
]


def run(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code of a command line, and all that it said."""
    monkeypatch.setattr(sys, "argv", ["twinserve", *arguments])
    HydraConfig.instance().cfg = None
    code = cli.main()
    return code, "\n".join(capsys.readouterr())


@pytest.mark.long
def test_the_commands_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = [words[1:] for words in commands(PAGE) if words[0] == "twinserve"]
    served = next(words for words in shown if "task=serve" in words)
    with serving(tmp_path / "server", *(word for word in served if word != "task=serve")) as server:
        for words in (words for words in shown if "task=serve" not in words):
            small = [word for word in words if not word.startswith(("trace.num", "arrival.rate"))]
            small = [word.replace("http://localhost:8000", server.address) for word in small]
            if "task=observe" in words:
                small += [*SHORT, "observe.time_s=3", "calibration.max_evaluations=3"]
            arguments = [*small, *(SMALL if "task=report" not in words else ())]
            code, said = run(arguments, monkeypatch, capsys)
            if code and (longer := re.search(r"give (observe\.time_s=\d+)", said)):  # the machine is busy
                code, said = run([*arguments, longer[1]], monkeypatch, capsys)
            assert code == 0, (words, said)
    HydraConfig.instance().cfg = None
    assert (tmp_path / "outputs" / "observed" / "measured" / "requests.parquet").exists()
    (report,) = tmp_path.glob("outputs/*/comparison.csv")
    table = pd.read_csv(report)
    assert sorted(table["simulated"]) == [False, True] and (table["completed"] == 20).all()
    measured, simulated = (
        pd.read_parquet(tmp_path / "outputs" / kind / "requests.parquet")["tpot"] for kind in ("measured", "simulated")
    )
    # The server is in one process with its client, so that a machine which is busy makes most requests slower.
    assert measured.min() < 1.3 * simulated.median() and measured.median() > 0.7 * simulated.median()
