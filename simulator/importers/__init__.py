"""Profiles measured by other tools, read as ours: `<tool>:<folder>`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from simulator.hardware import Device, ModelShape
from simulator.importers.llmservingsim import read_bundle
from simulator.importers.vidur import read_profiling
from simulator.profile.files import load_profile, rank_folder
from simulator.profile.profile import Profile, ProfileError

Importer = Callable[[Path, ModelShape, int, int, Device], Profile]
IMPORTERS: dict[str, Importer] = {"llmservingsim": read_bundle, "vidur": read_profiling}


@functools.lru_cache(maxsize=4)  # a calibration asks for the same one at every evaluation
def open_profile(name: str, model: ModelShape, tensor_parallel_size: int, max_num_seqs: int, device: Device) -> Profile:
    """The profile that `name` means for a model on so many ranks: a folder of ours, or `<tool>:<folder>`.

    A folder of ours is `tp<N>` itself or the one above it. What `max_num_seqs` of the engine and the device to simulate
    have to do with it, the importers say.

    Raises:
        ProfileError: it is not there, was not measured for these ranks, or cannot be read.
    """
    tool, separator, rest = name.partition(":")
    if separator and tool in IMPORTERS:
        return IMPORTERS[tool](Path(rest), model, tensor_parallel_size, max_num_seqs, device)
    if separator and not Path(name).exists():
        raise ProfileError(f"{name!r}: neither a folder nor <tool>:<folder> (tools: {', '.join(IMPORTERS)})")
    folder = Path(name)
    return load_profile(rank_folder(folder, tensor_parallel_size) if any(folder.glob("tp*")) else folder)
