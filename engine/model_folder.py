"""What a model folder holds beside shape and weights: the tokenizer, and default sampling parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.json_file import ModelError, read_json
from engine.sampling_params import SamplingParams

_DEFAULTS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a model folder; None if the folder has none. Code in the folder, or named by it, is never run.

    Raises:
        ModelError: the tokenizer's files cannot be used, or need such code.
    """
    if not (folder / "tokenizer_config.json").exists() and not (folder / "tokenizer.json").exists():
        return None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # the libraries that read the files raise errors of any type
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        if "trust_remote_code" in str(error):
            reason = "its auto_map names Python code, and code of a model folder is never run"
        raise ModelError(f"{folder}: the tokenizer cannot be loaded: {reason}") from None


def default_sampling_params(folder: Path) -> SamplingParams:
    """The sampling parameters that `generation_config.json` recommends; those of `SamplingParams` where it names none.

    Raises:
        ModelError: the file is not JSON, or a value is out of range.
    """
    path = folder / "generation_config.json"
    if not path.is_file():
        return SamplingParams()
    data = read_json(path)
    given = {ours: data[theirs] for theirs, ours in _DEFAULTS.items() if data.get(theirs) is not None}
    try:
        return SamplingParams(**given)
    except (TypeError, ValueError) as error:
        raise ModelError(f"{path}: {error}") from None
