"""Lines of text in the terminal."""

from rich.console import Console
from rich.text import Text

TO_COPY = ("use it with: ", "results: ")


def print_line(console: Console, line: str, style: str = "") -> None:
    """Print a line: broken between words in a terminal, whole elsewhere and where it is to be copied."""
    whole = line.startswith(TO_COPY) or not console.is_terminal
    console.print(Text(line, style=style), highlight=False, soft_wrap=whole)
