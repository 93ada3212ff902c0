"""Files of the Hugging Face Hub: hf://<owner>/<data set>[@<revision>]/<file>, and hf://<owner>/<model>[@<revision>]."""

from __future__ import annotations

import re
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Literal

from harness.errors import ConfigError, TraceError, TwinServeError

PREFIX = "hf://"
_REPO = r"(?P<repo>[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?"
_FILE = re.compile(rf"hf://(?:datasets/)?{_REPO}/(?P<file>.+)")
_MODEL = re.compile(rf"hf://(?:models/)?{_REPO}")


def fetched(path: str) -> str:
    """The trace file on this machine that a path is; one of the Hub is downloaded, or found in the Hub's cache.

    Raises:
        TraceError: the library is not installed, or the file is not there or cannot be had now.
    """
    if not path.startswith(PREFIX):
        return path
    if (match := _FILE.fullmatch(path)) is None:
        raise TraceError(f"trace.path={path}: must be {PREFIX}<owner>/<data set>[@<revision>]/<file>")
    return str(_download(f"trace.path={path}", match, match["file"], "dataset", TraceError))


def model_config(path: str) -> Path:
    """The `config.json` of a model of the Hub, in the Hub's cache, beside its `hf_quant_config.json` if it has one.

    Raises:
        ConfigError: the library is not installed, or the file is not there or cannot be had now.
    """
    where = f"model.config={path}"
    if (match := _MODEL.fullmatch(path)) is None:
        raise ConfigError(f"{where}: must be {PREFIX}<owner>/<model>[@<revision>]")
    found = _download(where, match, "config.json", "model", ConfigError)
    with suppress(ConfigError):  # most models have none
        _download(where, match, "hf_quant_config.json", "model", ConfigError)
    return found


def _download(
    where: str, match: re.Match[str], file: str, kind: Literal["dataset", "model"], refusal: type[TwinServeError]
) -> Path:
    try:
        hub = import_module("huggingface_hub")
    except ImportError:
        raise refusal(f"{where}: huggingface_hub is not installed (pip install -e '.[hub]')") from None
    try:
        return Path(hub.hf_hub_download(match["repo"], file, repo_type=kind, revision=match["revision"]))
    except (hub.errors.LocalEntryNotFoundError, hub.errors.OfflineModeIsEnabled):
        raise refusal(
            f"{where}: the Hugging Face Hub cannot be reached, and the file is not in its cache here"
        ) from None
    except (hub.errors.HfHubHTTPError, OSError, ValueError) as error:
        raise refusal(f"{where}: {' '.join(str(error).split())[:200]}") from None


def revision_note(path: str, local: str) -> tuple[str, ...]:
    """For the results, which version of a file of the Hub was read; nothing for other files."""
    parts = Path(local).parts
    if path == local or "snapshots" not in parts:
        return ()
    return (f"{path} is of revision {parts[parts.index('snapshots') + 1][:12]}",)
