"""Result folders by name, with wildcards and ~."""

from pathlib import Path

import pytest

from harness.errors import ConfigError, TwinServeError
from harness.jobs import execute
from harness.studies.comparison.folders import expand_results
from tests.harness.builders import config


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("m/1/block_size=16", "m/1/block_size=128", "m/1/seed=0", "m/2/block_size=16", "one", "od[d]"):
        Path(name).mkdir(parents=True)
        Path(name, "summary.json").touch()
    Path("m/block_file").touch()
    Path("empty").mkdir()


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["m/*/block*"], ["m/1/block_size=16", "m/1/block_size=128", "m/2/block_size=16"]),
        (["m/[1]"], ["m/1/block_size=16", "m/1/block_size=128", "m/1/seed=0"]),
        (["**/seed=?"], ["m/1/seed=0"]),
        (["o*", "one"], ["od[d]", "one"]),
        (["od[d]"], ["od[d]"]),  # a folder that has that very name
        (["~/m/2"], ["m/2/block_size=16"]),
        (["~/m/?/block_size=128", "none*"], ["m/1/block_size=128"]),  # what is missing stops nothing
    ],
)
def test_what_names_stand_for(names: list[str], expected: list[str]) -> None:
    assert [path.resolve() for path in expand_results(names)] == [Path(name).resolve() for name in expected]


def test_a_link_to_itself_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ConfigError, match="loop is not a folder"):
        expand_results([str(tmp_path / "loop")])
    with pytest.raises(TwinServeError, match="loop"):
        execute(config("task=validate", f"validation.measured=run:{tmp_path / 'loop'}"), tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("m/*/none*", "results: no folder matches m/*/none*"),
        ("m/block_f*", "results: no folder matches m/block_f*"),
        ("nowhere", "results: nowhere is not a folder; give folders of earlier runs or sweeps"),
        ("em*", "results: em* holds no result (no summary.json in it or below it)"),
    ],
)
def test_nothing_there_is_one_line(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        expand_results([name])
    assert str(caught.value) == message
