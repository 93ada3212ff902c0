"""docs/extend.md: a folder of the user's own, made of the page's code blocks, in which the page's commands run."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hydra.core.hydra_config import HydraConfig

from engine.core import policies
from harness import cli
from harness.config import targets
from harness.results.files import read_results

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
COMMANDS: list[str] = re.findall(r"^    (twinserve .*)$", TEXT, re.MULTILINE)
Launch = Callable[[str], int]


def write_page(folder: Path) -> None:
    """The files of the page; blocks of the same file follow one another."""
    blocks: list[tuple[str, str]] = re.findall(r"^`([\w./-]+)`:\n\n```\w+\n(.*?)```", TEXT, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 9
    for name, code in blocks:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(code)


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launch]:
    """The command line in a folder with the files of the page; what it imports is forgotten afterwards."""
    write_page(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(targets, "_imported", {})
    known = dict(policies.POLICIES)

    def call(command: str) -> int:
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        return cli.main()

    yield call
    HydraConfig.instance().cfg = None
    sys.modules.pop("own", None)
    policies.POLICIES.clear()
    policies.POLICIES.update(known)


def result_folder(folder: Path) -> Path:
    (found,) = (folder / "outputs").iterdir()
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_page_run(launch: Launch, tmp_path: Path, command: str) -> None:
    assert launch(command) == 0
    if "--help" in command:
        return
    folder = result_folder(tmp_path)
    _, summary = read_results(folder)
    assert summary["complete"]
    if "figures" in command:
        assert (folder / "prompts_and_ttft.png").stat().st_size > 1000
