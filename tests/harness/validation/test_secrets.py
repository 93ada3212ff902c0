"""Result folders of other people: what looks like an interpolation stays text, so that no secret is published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.config import load, to_yaml
from tests.harness.builders import config, execute_in
from tests.harness.measured.builders import (
    REFERENCE,
    SECRET,
    assert_no_secret,
    change_summary,
    pretend_measured,
    refer_to_secret,
)


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A result folder whose files refer to the reader's environment wherever there is text."""
    monkeypatch.setenv("SECRET", SECRET)
    folder = tmp_path / "hostile"
    pretend_measured(folder, "trace.num_requests=20")
    refer_to_secret(folder)
    change_summary(folder, model=REFERENCE, device=REFERENCE, trace=REFERENCE, notes=[REFERENCE], policy=REFERENCE)
    return folder


def test_validate_leaves_references_as_text(
    hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert load(hostile / "config.yaml").model.name == REFERENCE
    out = tmp_path / "out"
    execute_in(out, config("progress=false", "task=validate", f"validation.measured=run:{hostile}"))
    assert REFERENCE in json.dumps(json.loads((out / "validation.json").read_text()))
    assert_no_secret(out, "".join(capsys.readouterr()) + caplog.text)


def test_report_leaves_references_as_text(
    hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    settings = config("task=report", f"results=[{hostile},{hostile}]", "plots=true")
    execute_in(tmp_path / "out", settings)
    assert_no_secret(tmp_path / "out", "".join(capsys.readouterr()) + caplog.text)


@pytest.mark.parametrize(
    "text", [REFERENCE, "${", "${a", "a: b", "1e-3", "1e3", "2025-01-01", "yes", "~", "\u00e9", "- x"]
)
def test_any_text_survives_being_written(text: str, tmp_path: Path) -> None:
    settings = config()
    settings = settings.model_copy(update={"model": settings.model.model_copy(update={"name": text})})
    (tmp_path / "config.yaml").write_text(to_yaml(settings), encoding="utf-8")
    assert load(tmp_path / "config.yaml") == settings
