"""What is known of the server of a measured run, as overrides of run.py: the version of vLLM in a record or in a log
beside it, and all settings of the servers of public measurements."""

from __future__ import annotations

import re
from collections import abc
from pathlib import Path
from typing import Any

from engine.documents import user_path
from harness.config.quoting import quoted
from harness.errors import MeasuredRunError
from harness.measured import public_servers
from harness.measured.records import read_json, read_text
from simulator.versions.vllm_versions import vllm_version

_VERSION = "engine.vllm_version"
_LINES = re.compile(r"(?:vLLM API server version|LLM engine \(v)\s*v?(\d+\.\d+(?:\.\d+)?)")


def with_server(arguments: abc.Sequence[str]) -> tuple[list[str], str | None]:
    """The arguments with what is known of the server, all but what they give; and a line that says what was added."""
    given = {text.partition("=")[0].lstrip("+~"): text.partition("=")[2] for text in arguments if "=" in text}
    kind, _, path = given.get("validation.measured", "").partition(":")
    if kind == "inferencex":
        return public_servers.with_server(arguments, given)
    version = None if _VERSION in given else recorded_version(kind, user_path(path.strip("'\"")))
    if version is None:
        return list(arguments), None
    return [*arguments, f"{_VERSION}={quoted(version)}"], f"{_VERSION}={version}, as the record says"


def recorded_version(kind: str, path: Path) -> str | None:
    """The version of vLLM in a record of LLMServingSim or `vllm bench serve`, or in a log of the server beside it; None
    where neither tells, several versions do, or nothing is known of it."""
    if kind not in ("llmservingsim", "vllm_bench"):
        return None
    record, logs = (path / "meta.json", path.glob("*.log")) if path.is_dir() else (path, [path.with_suffix(".log")])
    found: set[str] = set()
    try:
        document: Any = read_json(record)
        if isinstance(document, dict) and isinstance(told := document.get("vllm_version"), str):
            found |= set(re.findall(r"^v?(\d+\.\d+(?:\.\d+)?)", told))
        for log in logs:
            found |= set(_LINES.findall(read_text(log))) if log.is_file() else set()
        (version,) = found
        vllm_version(version)
    except (MeasuredRunError, ValueError):  # unreadable, of which its reader says more; not one version, or unknown
        return None
    return version
