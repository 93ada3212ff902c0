"""The kept text of `--help` is what would be made anew, or it is made anew."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from harness.config.composing import help_text, kept_help
from harness.errors import ConfigError


def test_a_text_is_kept_until_what_made_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Sequence[str]] = []

    def build(folders: Sequence[Path], words: Sequence[str], program: str) -> str:
        made.append([*map(str, folders[1:]), *words])
        if "nothing" in words:
            raise ConfigError("nothing matches")
        return f"{program}: {len(made)}"

    for name, each in [*sys.modules.items()]:  # what other tests imported from files that are gone
        if (file := getattr(each, "__file__", None)) and not Path(file).exists():
            monkeypatch.delitem(sys.modules, name)
    code, cache = tmp_path / "mine.py", tmp_path / "cache"
    code.write_text("x = 1")
    module = ModuleType("mine")
    module.__file__ = str(code)
    monkeypatch.setitem(sys.modules, "mine", module)
    monkeypatch.setattr(help_text, "build", build)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert [kept_help.text_of([], "twinserve") for _ in range(2)] == ["twinserve: 1"] * 2
    assert kept_help.text_of(["slo"], "twinserve") == "twinserve: 2"
    assert kept_help.text_of([], "python run.py") == "python run.py: 3"
    code.write_text("x = 10")
    assert [kept_help.text_of([], "twinserve") for _ in range(2)] == ["twinserve: 4"] * 2
    code.unlink()
    del module.__file__
    assert [kept_help.text_of([], "twinserve") for _ in range(2)] == ["twinserve: 5"] * 2
    for damage in (b"{", b"[]", b'{"code": 3}', b'{"code": [["x"]], "text": ""}'):
        for entry in cache.rglob("*.help"):
            entry.write_bytes(damage)
        assert kept_help.text_of([], "twinserve") == f"twinserve: {len(made)}"
    with pytest.raises(ConfigError):
        kept_help.text_of(["nothing"], "twinserve")
    before = len(made)
    assert [kept_help.text_of([], "twinserve", tmp_path) for _ in range(2)] == [
        f"twinserve: {before + 1}",
        f"twinserve: {before + 2}",
    ]
    assert made[-1] == [str(tmp_path)]


def test_help_is_made_where_nothing_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(help_text, "build", lambda *asked: "text")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert kept_help.text_of([], "twinserve") == "text"
