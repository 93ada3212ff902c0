"""Trace files in data sets of the Hugging Face Hub: hf://<owner>/<data set>[@<revision>]/<file>."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

from harness.errors import TraceError

PREFIX = "hf://"
_NAME = re.compile(r"hf://(?:datasets/)?(?P<repo>[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?/(?P<file>.+)")


def fetched(path: str) -> str:
    """The file on this machine that a path is; one of the Hub is downloaded, or found in the Hub's cache.

    Raises:
        TraceError: the library is not installed, or the file is not there or cannot be had now.
    """
    if not path.startswith(PREFIX):
        return path
    if (match := _NAME.fullmatch(path)) is None:
        raise TraceError(f"trace.path={path}: must be {PREFIX}<owner>/<data set>[@<revision>]/<file>")
    try:
        hub = import_module("huggingface_hub")
    except ImportError:
        raise TraceError(f"trace.path={path}: huggingface_hub is not installed (pip install -e '.[hub]')") from None
    try:
        found = hub.hf_hub_download(match["repo"], match["file"], repo_type="dataset", revision=match["revision"])
    except (hub.errors.LocalEntryNotFoundError, hub.errors.OfflineModeIsEnabled):
        raise TraceError(
            f"trace.path={path}: the Hugging Face Hub cannot be reached, and the file is not in its cache here"
        ) from None
    except (hub.errors.HfHubHTTPError, OSError, ValueError) as error:
        raise TraceError(f"trace.path={path}: {' '.join(str(error).split())[:200]}") from None
    return str(found)


def revision_note(path: str, local: str) -> tuple[str, ...]:
    """For the results, which version of a file of the Hub was read; nothing for other files."""
    parts = Path(local).parts
    if path == local or "snapshots" not in parts:
        return ()
    return (f"{path} is of revision {parts[parts.index('snapshots') + 1][:12]}",)
