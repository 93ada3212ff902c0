"""Profiles that come with the project: one archive for each GPU, compiled from NVIDIA's operator times.

    simulator/profiles/gpu/<system>.zip
        NOTICE                                      where the times are from, and their licence
        <model>/<quantization>-<kv dtype>/tp<N>/    a profile as a folder (`simulator.profile.profile_folder`)

`experiments.default_profiles` makes the archives.
"""

from __future__ import annotations

import tempfile
import zipfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from simulator.models.hardware import ModelShape
from simulator.profile.checks import base_name, check_fits
from simulator.profile.graph_sizes import graph_sizes
from simulator.profile.profile import Profile, ProfileError
from simulator.profile.profile_folder import load_profile, save_profile

FOLDER = Path(__file__).resolve().parents[1] / "profiles" / "gpu"
NOTICE = "NOTICE"
_DATE = (2026, 1, 1, 0, 0, 0)  # of all members, so that equal profiles make equal archives


def find_profile(system: str, model: ModelShape, tensor_parallel_size: int, max_num_seqs: int) -> Profile | None:
    """The profile of this model on GPUs of this system; None if the project has none.

    CUDA graphs are those that vLLM captures for `max_num_seqs`.

    Raises:
        ProfileError: the archive is damaged.
    """
    path = FOLDER / f"{system}.zip"
    if not path.is_file():
        return None
    models = [replace(model, kv_dtype=dtype) for dtype in model.priced_kv_dtypes]
    prefixes = tuple(entry_name(each, tensor_parallel_size) for each in models)
    profile = _first_entry(path, path.stat().st_mtime_ns, prefixes)
    if profile is None:
        return None
    try:
        check_fits(profile, model, tensor_parallel_size)
    except ProfileError:  # sizes were changed under the model's name
        return None
    return Profile(replace(profile.meta, token_buckets=graph_sizes(max_num_seqs)), profile.tables)


@lru_cache(maxsize=16)
def _first_entry(path: Path, changed_ns: int, prefixes: tuple[str, ...]) -> Profile | None:
    """The profile under the first of `prefixes` that the archive has; it is read again when the archive has changed."""
    try:
        with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory() as folder:
            names = archive.namelist()
            prefix = next((each for each in prefixes if any(name.startswith(each) for name in names)), None)
            if prefix is None:
                return None
            archive.extractall(folder, [name for name in names if name.startswith(prefix)])
            return load_profile(Path(folder) / prefix)
    except (zipfile.BadZipFile, OSError) as error:
        raise ProfileError(f"{str(path)!r}: cannot be read: {error}") from None


def entry_name(model: ModelShape, tensor_parallel_size: int) -> str:
    """The folder of a profile in its archive."""
    return f"{base_name(model.name)}/{model.quantization.name}-{model.kv_dtype}/tp{tensor_parallel_size}/"


def write_archive(path: Path, profiles: dict[str, Profile], notice: str) -> None:
    """Write profiles by entry name; equal profiles make an equal file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        _add(archive, NOTICE, notice.encode())
        for entry, profile in sorted(profiles.items()):
            with tempfile.TemporaryDirectory() as folder:
                save_profile(profile, Path(folder))
                for file in sorted(Path(folder).iterdir()):
                    _add(archive, entry + file.name, file.read_bytes())


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    member = zipfile.ZipInfo(name, _DATE)
    member.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(member, data)
