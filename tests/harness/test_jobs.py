"""What a task needs before it starts."""

import importlib.util
from pathlib import Path

import pytest

from harness.errors import ConfigError
from tests.harness.builders import config, execute_in

LIMIT = "metrics.slo.ttft_ms=100"


@pytest.mark.parametrize(
    ("overrides", "missing", "extra"),
    [
        (("task=search", "search.space={max_num_seqs:[1,2]}", LIMIT), "optuna", "search"),
        (("task=calibrate", "validation.measured=run:run"), "scipy", "calibrate"),
        (("task=observe", "engine=openai", "engine.endpoint=http://localhost:1"), "scipy", "calibrate"),
        (("task=profile", "engine=cpu", "model=tiny", "profile.out=profile"), "scipy", "engine"),
    ],
)
def test_a_package_that_only_one_task_needs_is_named_with_its_extra(
    overrides: tuple[str, ...], missing: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == missing else find(name))
    with pytest.raises(ConfigError, match=rf"{missing} is not installed \(pip install -e '.\[{extra}\]'\)"):
        execute_in(tmp_path / "run", config(*overrides))
