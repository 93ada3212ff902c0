"""The shell commands and files that the README and the pages in docs/ show."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
_PROGRAMS = ("twinserve", "python", "pip", "pytest", "zensical")


def text_of(page: str) -> str:
    return PAGES[page].read_text(encoding="utf-8")


def commands(page: str) -> list[list[str]]:
    """Arguments of each command in the indented blocks of a page, its program first."""
    outside = re.sub(r"^```.*?^```", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    lines = re.sub(r" *\\\n +", " ", outside).splitlines()
    found = [line.strip() for line in lines if line.startswith("    ") and not line.startswith("     ")]
    split = [shlex.split(part, comments=True) for line in found for part in _parts(line)]
    return [arguments for arguments in split if arguments[0] in _PROGRAMS]


def _parts(line: str) -> list[str]:
    """The commands of a line, without a remark that follows them after some space."""
    return re.split(" {3,}", line)[0].split(" && ") if line.startswith(_PROGRAMS) else []


def write_files(page: str, folder: Path) -> None:
    """Write the files that a page shows: a name in backticks, a colon, and a code block. Blocks with the same name
    follow one another."""
    for name, code in re.findall(r"^`([\w./-]+)`:\n\n```\w+\n(.*?)```", text_of(page), re.DOTALL | re.MULTILINE):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(code)
