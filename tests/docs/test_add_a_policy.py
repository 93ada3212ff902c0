"""docs/add_a_policy.md: its code is that of the repository, and its rule of admission runs from a folder elsewhere."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra.core.hydra_config import HydraConfig

from engine.core.policies import POLICIES
from harness import cli
from harness.config import targets
from harness.results.stored.files import read_results
from tests.docs.pages import ROOT, commands, text_of, write_files

PAGE = "add_a_policy.md"
FILES = {"python": "engine/core/policies/sjf.py", "yaml": "conf/scheduler/sjf.yaml"}
OWN = "own.py"


@pytest.mark.parametrize("language", FILES)
def test_the_code_is_that_of_the_repository(language: str) -> None:
    source = (ROOT / FILES[language]).read_text(encoding="utf-8")
    parts: list[str] = re.findall(rf"(?<!`:\n\n)```{language}\n(.*?)```", text_of(PAGE), re.DOTALL)
    assert parts and all(part in source for part in parts)
    if language == "yaml":
        assert parts == [source]


def test_a_policy_is_a_file_of_under_100_lines() -> None:
    for path in (ROOT / "engine" / "core" / "policies").glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) < 100, path


def test_the_rule_of_admission_is_short_and_touches_nothing_private(tmp_path: Path) -> None:
    """It is the policy that the fuzz has."""
    write_files(PAGE, tmp_path)
    code = (tmp_path / OWN).read_text(encoding="utf-8")
    assert code == (ROOT / "tests" / "engine" / "fuzz" / "outputs_fit.py").read_text(encoding="utf-8")
    assert len(code.splitlines()) < 40 and not re.search(r"\b_[a-z]", code)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the files of the page; what is imported from it is forgotten afterwards."""
    write_files(PAGE, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(targets, "_imported", {})
    known = dict(POLICIES)
    yield tmp_path
    HydraConfig.instance().cfg = None
    sys.modules.pop("own", None)
    POLICIES.clear()
    POLICIES.update(known)


def test_with_the_rule_of_admission_nobody_is_preempted(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the commands of the page have it: without the rule some are, and with it steps still run on."""
    shown = [words for words in commands(PAGE) if words[0] == "twinserve"]
    preempted = {}
    for number, words in enumerate(shown):
        others = shlex.split(f"plots=false progress=false hydra.run.dir={number}")
        monkeypatch.setattr(sys, "argv", [*words, *others])
        assert cli.main() == 0
        result, summary = read_results(elsewhere / str(number))
        preempted[summary["policy"]] = int(result.requests["num_preemptions"].sum())
    assert preempted["own:OutputsFit"] == 0 < preempted["mixed"]
