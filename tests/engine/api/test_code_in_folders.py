"""Code in a model folder, or named by it, is not run: Python that `auto_map` names, or what a template reaches for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from engine.api.prompts import render  # noqa: E402
from engine.json_file import ModelError  # noqa: E402
from engine.model_folder import load_tokenizer  # noqa: E402
from tests.engine.api.builders import save_folder  # noqa: E402

CODE = """
import pathlib
pathlib.Path(r"{ran}").touch()
class Config:
    model_type = "unheard_of"
class Tokenizer: ...
"""


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(("config", "tokenizer"), [(True, False), (False, True)])
def test_python_of_a_model_folder_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: bool, tokenizer: bool
) -> None:
    folder, ran = save_folder(tmp_path / "model"), tmp_path / "ran"
    (folder / "evil.py").write_text(CODE.format(ran=ran))
    if config:
        auto_map: dict[str, Any] = {"AutoConfig": "evil.Config", "AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"]}
        change(folder / "config.json", model_type="unheard_of", auto_map=auto_map)
    if tokenizer:
        auto_map = {"AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"]}
        change(folder / "tokenizer_config.json", tokenizer_class="Tokenizer", auto_map=auto_map)

    asked: list[object] = []

    def agree(*text: object) -> str:
        asked.append(text)
        return "y"

    monkeypatch.setattr("builtins.input", agree)
    try:
        load_tokenizer(folder)
    except ModelError as error:
        assert "code of a model folder is never run" in str(error) and "\n" not in str(error)
    assert not ran.exists() and not asked


def test_a_template_that_reaches_for_python_is_refused(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save_folder(tmp_path / "model"))
    for template in ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages.append(1) }}"):
        tokenizer.chat_template = template
        with pytest.raises(ValueError, match="messages"):
            render(tokenizer, [{"role": "user", "content": "x"}], 0, {})
