"""Profiles that come with the project: one archive for each GPU, compiled from NVIDIA's operator times.

    simulator/profiles/gpu/<system>.zip
        NOTICE                                      where the times are from, and their licence
        <model>/<quantization>-<kv dtype>/tp<N>/    a profile as a folder (`simulator.profile.profile_folder`)

`experiments.default_profiles` makes the archives.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from simulator.models.hardware import ModelShape
from simulator.profile.checks import base_name, check_measured_on
from simulator.profile.graph_sizes import graph_sizes
from simulator.profile.profile import META, Profile, ProfileError, ProfileMeta
from simulator.profile.profile_folder import load_meta, load_profile, save_profile

FOLDER = Path(__file__).resolve().parents[1] / "profiles" / "gpu"
NOTICE = "NOTICE"
_DATE = (2026, 1, 1, 0, 0, 0)  # of all members, so that equal profiles make equal archives


def find_profile(system: str, model: ModelShape, tensor_parallel_size: int, max_num_seqs: int) -> Profile | None:
    """The profile of a model of these sizes on GPUs of this system, that of its name first; None if the project has
    none.

    CUDA graphs are those that vLLM captures for `max_num_seqs`.

    Raises:
        ProfileError: the archive is damaged.
    """
    path = FOLDER / f"{system}.zip"
    if not path.is_file():
        return None
    models = [replace(model, kv_dtype=dtype) for dtype in model.priced_kv_dtypes]
    named = [entry_name(each, tensor_parallel_size) for each in models]
    kinds = tuple(each.partition("/")[2] for each in named)
    for entry in [*named, *_entries(path, path.stat().st_mtime_ns, kinds)]:
        meta = _meta(path, path.stat().st_mtime_ns, entry)
        if meta is not None and _fits(meta, model, tensor_parallel_size):
            found = _read(path, path.stat().st_mtime_ns, entry)
            return Profile(replace(meta, token_buckets=graph_sizes(max_num_seqs)), found.tables)
    return None


def _fits(meta: ProfileMeta, model: ModelShape, tensor_parallel_size: int) -> bool:
    """Whether the sizes are those of the model, which they may not be under its own name."""
    try:
        check_measured_on(meta, model, tensor_parallel_size)
    except ProfileError:
        return False
    return True


@lru_cache(maxsize=64)
def _entries(path: Path, changed_ns: int, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """The entries of an archive of any model in one of these kinds, `<quantization>-<kv dtype>/tp<N>/`, in their order;
    read again when the archive has changed."""
    with _opened(path) as archive:
        folders = {name.rpartition("/")[0] + "/" for name in archive.namelist() if "/" in name}
    return tuple(entry for kind in kinds for entry in sorted(folders) if entry.partition("/")[2] == kind)


@lru_cache(maxsize=256)
def _meta(path: Path, changed_ns: int, entry: str) -> ProfileMeta | None:
    """What an entry was measured on; None where the archive has no such entry."""
    with _opened(path) as archive, tempfile.TemporaryDirectory() as folder:
        if entry + META not in archive.namelist():
            return None
        archive.extract(entry + META, folder)
        return load_meta(Path(folder) / entry)


@lru_cache(maxsize=16)
def _read(path: Path, changed_ns: int, entry: str) -> Profile:
    with _opened(path) as archive, tempfile.TemporaryDirectory() as folder:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(entry)])
        return load_profile(Path(folder) / entry)


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
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
