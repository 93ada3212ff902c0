"""Reading the CSV files of profiles, ours and those of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from engine.documents import DocumentError, check_regular
from simulator.profile.profile import ProfileError

if TYPE_CHECKING:
    import pandas as pd

_MAX_BYTES = 256 << 20


def read_csv(path: Path) -> pd.DataFrame:
    """The table in a CSV file; its index counts the rows below the header from 0.

    Raises:
        ProfileError: it cannot be read, or is no CSV table.
    """
    import pandas as pd  # imported late, as archives are read without it

    try:
        check_regular(path, _MAX_BYTES)
        table = pd.read_csv(path)
    except DocumentError as error:
        raise ProfileError(f"{path.name}: {error}") from None
    except OSError as error:
        raise ProfileError(f"{path.name}: cannot be read: {error.strerror}") from None
    except (ValueError, OverflowError) as error:  # of pandas' own and of text that is not UTF-8 among them
        raise ProfileError(f"{path.name}: not a CSV table: {error}") from None
    if not isinstance(table.index, pd.RangeIndex):
        raise ProfileError(f"{path.name}: not a CSV table: rows have more cells than the header")
    return table


def read_table(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    """The table in a CSV file that must have these columns.

    Raises:
        ProfileError: it is not there, is no CSV file, or lacks a column.
    """
    if not path.exists():
        there = ", ".join(sorted(entry.name for entry in path.parent.glob("*"))) or "nothing"
        raise ProfileError(f"no {path.name} in {str(path.parent)!r} (there: {there})")
    table = read_csv(path)
    if missing := [column for column in columns if column not in table.columns]:
        there = ", ".join(map(str, table.columns))
        raise ProfileError(f"{str(path)!r}: no column {', '.join(missing)} (there: {there})")
    return table
