"""stdout and stderr that never stop the program: results are written even if nobody can read what is printed.

Characters that a terminal lacks are replaced, and what is printed for a reader who has gone, such as `head`, is lost.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast


@contextmanager
def tolerant() -> Iterator[None]:
    """Inside the block `sys.stdout` and `sys.stderr` are such streams."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_tolerant(stream) for stream in before)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = before


def _tolerant(stream: TextIO | None) -> TextIO:
    if stream is None:  # closed by who started the program
        stream = open(os.devnull, "w")  # noqa: SIM115  # for as long as the program runs
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")
    return cast(TextIO, _Tolerant(stream))


class _Tolerant:
    """A text stream that goes to nowhere once its reader has gone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with self._to_nowhere_without_reader():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._to_nowhere_without_reader():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _to_nowhere_without_reader(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
