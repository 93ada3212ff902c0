"""Digests of what a configuration names."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.results.stored import inputs
from tests.harness.builders import config


def test_a_folder_of_very_many_files_is_refused_and_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the home folder is, named by mistake."""
    monkeypatch.setattr(inputs, "_MOST_FILES", 2)
    named = config("cost=profiled", f"cost.profile={tmp_path}")
    for number in range(2):
        (tmp_path / str(number)).touch()
    assert "cost.profile" in inputs.input_digests(named)
    (tmp_path / "2").touch()
    with pytest.raises(ConfigError, match="more than 2 files"):
        inputs.input_digests(named)


@pytest.mark.parametrize("content", ['{"a": "x", "b": {}, "c": null, "d": [1]}', "[1]", "{", "7"])
def test_digests_that_are_no_texts_are_left_out(tmp_path: Path, content: str) -> None:
    (tmp_path / "inputs.json").write_text(content)
    assert inputs.read_inputs(tmp_path) == ({"a": "x"} if content.startswith('{"a"') else {})
