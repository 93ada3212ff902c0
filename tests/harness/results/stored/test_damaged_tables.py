"""A table in a result folder with a column that holds something else is refused in one line that names it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

from harness.errors import TwinServeError
from harness.figures.pages import write_page
from harness.results.stored.files import read_results
from tests.fuzzing.inputs import SMALL
from tests.harness.builders import config, execute_in


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    execute_in(folder, config(*SMALL))
    return folder


@pytest.mark.parametrize(
    ("table", "column", "values"),
    [
        ("gaps", "weight", ["x", None, True, -1, 0.5, float("nan"), 2**62]),
        ("gaps", "value_s", ["5", None, b"x", float("inf"), -1.0]),
        ("requests", "ttft", ["x", None, True, pd.Timestamp(0), float("inf")]),
        ("requests", "request_id", [None, "x", float("nan")]),
        ("steps", "num_used_blocks", [[1], "5", None, float("nan"), b"x"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_column_of_something_else_is_named(
    table: str, column: str, values: list[object], run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    whole = pd.read_parquet(folder / f"{table}.parquet")
    for value in values:
        odd = pd.Series([value] * len(whole), name=column)
        whole.assign(**{column: odd}).to_parquet(folder / f"{table}.parquet")
        for read in (read_results, write_page):
            with pytest.raises(TwinServeError, match=column):
                read(folder)
