"""The text of `--help` in the user's cache folder: making it from the schema and the files under conf/ takes 0.3 s.

An entry is found by what is asked for, and by the files of the tree and the version of Python. It is taken only while
all files of code that made it are as they were (name, size, time of the last change): those of this project, and what
they import beside Python itself.
"""

import hashlib
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from harness.config.composing import CONF
from harness.config.composing.cache_folder import cache_folder, read_own, stamp, stamps, write_own

_FORMAT = 1


def text_of(words: Sequence[str], program: str, own: Path | None = None) -> str:
    """The help text, as `help_text.build` makes it.

    Args:
        own: the folder of `--config-dir`. With one the text is made anew, as its options may name any code.

    Raises:
        ConfigError: as `help_text.build`.
    """
    path = _path(words, program)
    if own is None and (text := _find(path)) is not None:
        return text
    from harness.config.composing import help_text  # imported late, as it brings the schema

    text = help_text.build([CONF, *([] if own is None else [own])], words, program)
    if own is None:
        with suppress(OSError):  # without a folder to write to, it is made again next time
            write_own(path, json.dumps({"code": _code(), "text": text}).encode())
    return text


def _find(path: Path) -> str | None:
    if (content := read_own(path)) is None:
        return None
    with suppress(OSError, ValueError, KeyError, TypeError):  # a damaged file, or one of code that is gone
        entry = json.loads(content)
        if all(stamp(name) == (name, *status) for name, *status in entry["code"]):
            return str(entry["text"])
    return None


def _path(words: Sequence[str], program: str) -> Path:
    key = repr((_FORMAT, sys.version, [*words], program, [*stamps(str(CONF))]))
    return cache_folder() / f"{hashlib.sha256(key.encode()).hexdigest()}.help"


def _code() -> list[tuple[str, int, int]]:
    """The files of all modules that are not Python's own."""
    files = {getattr(module, "__file__", None) for name, module in sys.modules.items() if not _is_pythons(name)}
    return [stamp(file) for file in sorted(filter(None, files))]


def _is_pythons(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names
