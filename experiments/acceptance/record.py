"""The record of all sections on one device: kept, merged section by section, and never made worse.

A section's entry has its status (ok, failed, killed, out of memory, skipped), checks, data, date, duration, and the
hardware, versions and revision that it ran with. A rerun replaces an entry that says no more than the rerun does; a
rerun that says less is only noted in the entry's `reruns`.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from experiments import ROOT
from experiments.acceptance.processes import Entry
from harness.results.stored.environment import cpu_model, slug

_PACKAGES = ("torch", "triton", "transformers", "flash-attn", "nano-vllm", "vllm", "numpy")
_QUERY = ("name", "driver_version", "memory.total", "clocks.max.sm")
_NOTED = ("status", "started", "seconds", "error")


def worth(entry: Entry) -> tuple[bool, bool, int]:
    """How much an entry says: whether it is ok, whether it ran, how many checks it has."""
    return entry["status"] == "ok", entry["status"] != "skipped", len(entry["checks"])


class Record:
    """The entries by section, in a JSON file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sections: dict[str, Entry] = {}
        if path.exists():
            self.sections = json.loads(path.read_text())["sections"]

    def add(self, name: str, entry: Entry) -> None:
        """Merge an entry in; the better of two stays, of equally good ones the newer."""
        old = self.sections.get(name)
        if old is not None and worth(entry) < worth(old):
            note = {key: entry[key] for key in _NOTED if key in entry}
            note["revision"] = entry.get("environment", {}).get("revision")
            if note not in (notes := old.setdefault("reruns", [])) and entry.get("started") != old.get("started"):
                notes.append(note)
            return
        self.sections[name] = entry

    def merge(self, other: Record) -> None:
        for name, entry in other.sections.items():
            self.add(name, entry)

    def save(self) -> None:
        """Write the file, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps({"sections": self.sections}, indent=1) + "\n")
        os.replace(fresh, self.path)


def environment(revision: str | None) -> dict[str, Any]:
    """Hardware, versions and revision; None for what is not known. Leaves the GPU alone: no context is made on it."""
    found: dict[str, Any] = {"python": platform.python_version(), "cpu": cpu_model(), "cpu_cores": os.cpu_count()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    found["revision"] = revision or _printed("git", "-C", str(ROOT), "rev-parse", "HEAD")
    gpu = _printed("nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader")
    values = gpu.splitlines()[0].split(", ") if gpu else [None] * len(_QUERY)
    return found | {f"gpu_{name}": value for name, value in zip(_QUERY, values, strict=False)}


def record_path(folder: Path, found: dict[str, Any], rehearse: bool) -> Path:
    """The file for this device."""
    return folder / f"acceptance_{'rehearsal' if rehearse else slug(found['gpu_name'] or 'cpu')}.json"


def _printed(*command: str) -> str | None:
    """What a command prints; None if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
