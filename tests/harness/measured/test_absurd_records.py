"""Records of measured runs with numbers that cannot be, ids that are there twice, and files that are something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.errors import TwinServeError
from harness.measured import READERS, load_measured
from tests.harness.measured.builders import (
    bench,
    edit_lines,
    made_up,
    pretend_measured,
    refusal,
    write_distserve,
    write_llmservingsim,
)

ABSURD_LENGTHS = [5.5, 0, -3, 2**31, 1e30, 10**400, float("nan"), "7", True, None, [1]]
ABSURD_TIMES = [1e30, 10**400, -(10**30), float("inf"), float("nan"), "1", None, {}]


@pytest.mark.parametrize("value", ABSURD_LENGTHS, ids=repr)
def test_absurd_lengths_are_refused_by_every_reader(value: Any, tmp_path: Path) -> None:
    folder, _ = write_llmservingsim(tmp_path / "folder")
    edit_lines(folder / "requests.jsonl", 1, output_toks=value)
    assert "output_toks" in refusal(f"llmservingsim:{folder}")
    assert "input_lens" in refusal(bench(tmp_path / "b.json", input_lens=[value, 20]))
    path = write_distserve(tmp_path / "m.exp", made_up())
    path.write_text(path.read_text().replace("'prompt_len': 20", f"'prompt_len': {value!r}"))
    assert "prompt_len" in refusal(f"distserve:{path}") or isinstance(value, float)  # nan is no Python literal


@pytest.mark.parametrize("value", ABSURD_TIMES, ids=repr)
def test_absurd_times_are_refused_by_every_reader(value: Any, tmp_path: Path) -> None:
    folder, _ = write_llmservingsim(tmp_path / "folder")
    edit_lines(folder / "requests.jsonl", 1, last_token_ts=value)
    assert "last_token_ts" in refusal(f"llmservingsim:{folder}")
    assert "ttfts" in refusal(bench(tmp_path / "b.json", ttfts=[0.5, value]))
    assert "itls of request 1" in refusal(bench(tmp_path / "b.json", itls=[[value, 0.1], []]))
    path = write_distserve(tmp_path / "m.exp", made_up())
    path.write_text(path.read_text().replace("'complete_time': 3.0", f"'complete_time': {value!r}"))
    assert f"{path}: " in refusal(f"distserve:{path}")


def test_times_years_after_the_first_arrival_are_refused(tmp_path: Path) -> None:
    """Microseconds since 1970 in one place, seconds in another."""
    assert "more than 1e+09 s after the first arrival" in refusal(bench(tmp_path / "b.json", ttfts=[0.5, 1.7e12]))


def test_ids_that_are_there_twice_are_refused(tmp_path: Path) -> None:
    folder, _ = write_llmservingsim(tmp_path)
    edit_lines(folder / "requests.jsonl", 2, request_id="bench-0")
    assert "request_id 'bench-0' is in lines 1 and 3" in refusal(f"llmservingsim:{folder}")


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\n\x00\xff", b"[" * 100_000, b"{}", None], ids=repr)
def test_other_files_and_folders_are_refused(kind: str, content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "it"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(TwinServeError) as error:
        load_measured(f"{kind}:{path}")
    assert str(error.value).startswith(f"{path}") and str(error.value).isprintable()


def test_a_bomb_of_aliases_in_the_configuration_of_a_run_is_refused(tmp_path: Path) -> None:
    pretend_measured(tmp_path, "trace.num_requests=5")
    lines = "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))
    path = tmp_path / "config.yaml"
    path.write_text(path.read_text() + "a0: &a0 [1]\n" + lines)
    with pytest.raises(TwinServeError, match=r"config\.yaml: not YAML as it is read here: aliases"):
        load_measured(f"run:{tmp_path}")
