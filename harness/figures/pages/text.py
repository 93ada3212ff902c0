"""The page on a result as text, for notebooks and for a file of any name."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from harness.errors import TwinServeError
from harness.figures.pages import write_page
from harness.results.stored.files import write_whole


def page_text(folder: Path, path: str | Path | None = None) -> str:
    """The page on the result in `folder`, which stays as it is; written to `path`, too, if one is given.

    Raises:
        TwinServeError: the folder holds no result of one task that has a page, or it cannot be read.
        OSError: the page cannot be written.
    """
    with TemporaryDirectory(prefix="twinserve-") as place:
        page = write_page(folder, Path(place))
        if page is None:
            raise TwinServeError(f"{folder}: holds nothing that has a page")
        return copied(page, path)


def copied(page: Path, path: str | Path | None) -> str:
    """The text of a page, written to `path`, too, if one is given."""
    text = page.read_text(encoding="utf-8")
    if path is not None:
        write_whole(Path(path), lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return text
