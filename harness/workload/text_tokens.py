"""Tokens of texts, by a `tokenizer.json`."""

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from harness.errors import ConfigError

Encode = Callable[[Sequence[str]], list[list[int]]]
"""The token ids of each text, without special tokens."""


def load_tokenizer(location: str) -> Encode:
    """The tokenizer of `trace.tokenizer`: a `tokenizer.json`, or a folder with one.

    Raises:
        ConfigError: there is none, it cannot be read, or the library for it is not installed.
    """
    path = tokenizer_file(location)
    if not path.is_file():
        raise ConfigError(f"trace.tokenizer={location!r}: must be a tokenizer.json, or a folder with one")
    try:
        tokenizers = import_module("tokenizers")  # optional: nothing else here needs it
    except ImportError:
        raise ConfigError("trace.tokenizer: needs `pip install tokenizers`") from None
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ConfigError(f"trace.tokenizer={location!r}: not a tokenizer: {' '.join(str(error).split())}") from None
    return lambda texts: [each.ids for each in tokenizer.encode_batch(list(texts), add_special_tokens=False)]


def tokenizer_file(location: str) -> Path:
    """The `tokenizer.json` that `location` is, or is the folder of."""
    return Path(location) / "tokenizer.json" if Path(location).is_dir() else Path(location)
