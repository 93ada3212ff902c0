"""Lines of text: broken between words in a terminal of 80 columns, whole elsewhere and where they are to be copied."""

import io

from rich.console import Console

from harness.results.terminal import print_line

WORDS = "no measured kernels of [this] model come with the project: " * 4


def printed(line: str, *, terminal: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80, color_system=None)
    print_line(console, line)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_words_stay_whole_in_a_terminal() -> None:
    lines = printed(WORDS, terminal=True).splitlines()
    assert len(lines) > 1 and max(map(len, lines)) <= 80
    assert " ".join(lines).split() == WORDS.split()


def test_a_line_stays_whole_when_piped_and_where_it_is_copied() -> None:
    assert printed(WORDS, terminal=False) == f"{WORDS}\n"
    assert printed(f"use it with: {WORDS}", terminal=True) == f"use it with: {WORDS}\n"
