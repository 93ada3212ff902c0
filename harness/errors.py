"""Errors a user can cause. Every message is one line that names the key or file and says what is allowed."""

from typing import Any

USER_ERROR = 2  # exit code
_LONGEST = 2000  # characters


class TwinServeError(Exception):
    """Base of all errors that end a run with one line instead of a traceback.

    What a message quotes from a file may be anything: control characters and line breaks are shown as escapes, and the
    middle of a very long message is left out.
    """

    def __str__(self) -> str:
        text = super().__str__()
        if len(text) > _LONGEST:
            text = f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 4 :]}"
        return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


class ConfigError(TwinServeError):
    """A configuration value is unknown, of the wrong type, out of range, or contradicts another."""


class TraceError(TwinServeError):
    """A trace file is missing, unreadable, or holds no usable row."""


class EngineError(TwinServeError):
    """An engine failed while it served: out of memory, or a worker died. The recorded results are kept.

    The message says why; `RunResult.meta["ended_early"]` and the summary hold it.

    Attributes:
        partial: the `Run` up to then, where `harness.run` raises the error.
    """

    partial: Any = None


class MeasuredRunError(TwinServeError):
    """The record of a measured run is missing, unreadable, incomplete, or holds failed requests."""
