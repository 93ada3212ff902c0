"""docs/limits.md: every test that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8").splitlines()
TABLE = [line for line in LINES if line.startswith("|")]


def test_every_promise_names_a_test_that_exists() -> None:
    assert len(TABLE) > 10
    for row in TABLE[2:]:
        last = row.split("|")[-2].strip()
        if last == "the same":
            continue
        match = re.fullmatch(r"`(tests/\S+\.py)::(test_\w+)`", last)
        assert match, f"no test: {row}"
        tree = ast.parse((ROOT / match[1]).read_text(encoding="utf-8"))
        assert match[2] in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, row
