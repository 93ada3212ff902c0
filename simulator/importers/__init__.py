"""Profiles measured by other tools, read as ours: `<tool>:<folder>`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from simulator.device import Device
from simulator.models.model import Model
from simulator.profile.profile import Profile, ProfileError
from simulator.profile.profile_folder import load_profile, rank_folder

Importer = Callable[[Path, Model, int, int, Device], Profile]
# By tool the function; imported late, as the profiles of the project are read without.
_IMPORTERS = {"aiconfigurator": "compile_profile", "llmservingsim": "read_bundle", "vidur": "read_profiling"}


def open_profile(name: str, model: Model, tensor_parallel_size: int, max_num_seqs: int, device: Device) -> Profile:
    """The profile `name` of a model on `tensor_parallel_size` ranks.

    `name` is a folder of ours, either `tp<N>` itself or the one above it, `<tool>:<folder>`, or for NVIDIA's database
    `aiconfigurator:<system>/<backend>/<version>`. Importers take the sizes of CUDA graphs from `max_num_seqs`, and how
    kernels split their work from the device to simulate.

    Raises:
        ProfileError: it is not there, was not measured for these ranks, or cannot be read.
    """
    tool, separator, rest = name.partition(":")
    if separator and tool in _IMPORTERS:
        if tool != "aiconfigurator" and not Path(rest).is_dir():
            raise ProfileError(f"no folder {rest!r}")
        module = importlib.import_module(f"simulator.importers.{tool}")
        read: Importer = getattr(module, _IMPORTERS[tool])
        return read(Path(rest), model, tensor_parallel_size, max_num_seqs, device)
    if separator and not Path(name).is_dir():
        raise ProfileError(f"{name!r}: neither a folder nor <tool>:<folder> (tools: {', '.join(_IMPORTERS)})")
    folder = Path(name)
    if not folder.is_dir():
        raise ProfileError(f"no folder {name!r}")
    return load_profile(rank_folder(folder, tensor_parallel_size) if any(folder.glob("tp*")) else folder)
