"""Errors a user can cause. Every message is one line that names the key or file and says what is allowed."""


class TwinServeError(Exception):
    """Base of all errors that end a run with one line instead of a traceback."""


class ConfigError(TwinServeError):
    """A configuration value is unknown, of the wrong type, out of range, or contradicts another."""


class TraceError(TwinServeError):
    """A trace file is missing, unreadable, or holds no usable row."""


class EngineError(TwinServeError):
    """The real engine failed while it served: out of memory, or a worker died. The recorded results are kept."""


class MeasuredRunError(TwinServeError):
    """The record of a measured run is missing, unreadable, incomplete, or holds failed requests."""
