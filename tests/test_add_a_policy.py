"""docs/add_a_policy.md: its code is that of the repository."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "add_a_policy.md").read_text(encoding="utf-8")
FILES = {"python": "engine/core/policies/sjf.py", "yaml": "conf/scheduler/sjf.yaml"}


@pytest.mark.parametrize("language", FILES)
def test_the_code_is_that_of_the_repository(language: str) -> None:
    source = (ROOT / FILES[language]).read_text(encoding="utf-8")
    parts: list[str] = re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
    assert parts and all(part in source for part in parts)
    if language == "yaml":
        assert parts == [source]


def test_a_policy_is_a_file_of_under_100_lines() -> None:
    for path in (ROOT / "engine" / "core" / "policies").glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) < 100, path
