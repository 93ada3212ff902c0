"""Reading the CSV files of other tools' profiles."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from simulator.profile.profile import ProfileError


def read_table(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    """The table in a CSV file that must have these columns.

    Raises:
        ProfileError: it is not there, is no CSV file, or lacks a column.
    """
    try:
        table = pd.read_csv(path)
    except OSError:
        there = ", ".join(sorted(entry.name for entry in path.parent.glob("*"))) or "nothing"
        raise ProfileError(f"no {path.name} in {str(path.parent)!r} (there: {there})") from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError):
        raise ProfileError(f"{str(path)!r} is not a CSV table") from None
    if missing := [column for column in columns if column not in table.columns]:
        raise ProfileError(f"{str(path)!r}: no column {', '.join(missing)} (there: {', '.join(table.columns)})")
    return table
