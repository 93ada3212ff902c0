"""Profiles that come with the project: one archive for each GPU, compiled from NVIDIA's operator times.

    simulator/profiles/gpu/<system>.zip
        NOTICE             where the times are from, and their licence
        index.json         <model>/<quantization>-<kv dtype>/tp<N>: the keys of its meta.yaml, its tables by name, and
                           for each kernel that a server may run instead of vLLM's newest choice the tables that differ
        tables/<n>.csv     each table once: models of the same heads share their attention, all models an all-reduce

`experiments.default_profiles` makes the archives.
"""

from __future__ import annotations

import csv
import io
import json
import math
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from simulator.models.model import Model
from simulator.profile.checks import base_name, check_measured_on
from simulator.profile.graph_sizes import graph_sizes
from simulator.profile.meta import ProfileMeta
from simulator.profile.profile import Profile, ProfileError
from simulator.profile.profile_folder import meta_of, meta_values
from simulator.table import Table, frame_of, stacked

if TYPE_CHECKING:
    import pandas as pd

FOLDER = Path(__file__).resolve().parents[1] / "profiles" / "gpu"
NOTICE, INDEX = "NOTICE", "index.json"
_DATE = (2026, 1, 1, 0, 0, 0)  # of all members, so that equal profiles make equal archives


class Entry(NamedTuple):
    """A profile, and its tables as other kernels make them, by kernel and name of the table."""

    profile: Profile
    kernels: Mapping[str, Mapping[str, Table | pd.DataFrame]]


def find_profile(
    system: str,
    model: Model,
    tensor_parallel_size: int,
    max_num_seqs: int,
    kernels: Iterable[str] = (),
    max_graph_tokens: int | None = None,
) -> Profile | None:
    """The profile of a model of these sizes on GPUs of this system, that of its name first; None if the project has
    none.

    CUDA graphs are those that vLLM captures for `max_num_seqs`, or up to `max_graph_tokens`. Those of `kernels` that
    make a difference for this model are in its meta's source, as `server`.

    Raises:
        ProfileError: the archive is damaged.
    """
    path = FOLDER / f"{system}.zip"
    if not path.is_file():
        return None
    key = path, path.stat().st_mtime_ns
    models = [replace(model, kv_dtype=dtype) for dtype in model.priced_kv_dtypes]
    named = [entry_name(each, tensor_parallel_size) for each in models]
    for entry in _first_named(path, key[1], named):
        if _entry(*key, entry) is not None and _fits(_meta(*key, entry), model, tensor_parallel_size):
            return _read(*key, entry, tuple(kernels), graph_sizes(max_num_seqs, max_graph_tokens))
    return None


def _first_named(path: Path, changed_ns: int, named: Sequence[str]) -> Iterator[str]:
    """Names of entries: those given, and then all that differ from one of them in the name of the model only."""
    yield from named
    for each in named:
        yield from (other for other in _entries(path, changed_ns) if other.partition("/")[2] == each.partition("/")[2])


def _fits(meta: ProfileMeta, model: Model, tensor_parallel_size: int) -> bool:
    """Whether the sizes are those of the model, which they may not be under its own name."""
    try:
        check_measured_on(meta, model, tensor_parallel_size)
    except ProfileError:
        return False
    return True


@lru_cache(maxsize=2)
def _index(path: Path, changed_ns: int) -> str:
    with _opened(path, changed_ns) as archive:
        return archive.read(INDEX).decode()


@lru_cache(maxsize=8)
def _entries(path: Path, changed_ns: int) -> dict[str, dict[str, Any]]:
    """The index of an archive, in its order; read again when the archive has changed."""
    with _opened(path, changed_ns):
        index: dict[str, dict[str, Any]] = json.loads(_index(path, changed_ns))
    return index


@lru_cache(maxsize=256)
def _entry(path: Path, changed_ns: int, name: str) -> dict[str, Any] | None:
    """An entry of the index; None where there is none. It is read alone, where `write_archive` wrote the index: a
    megabyte, which takes as long as all else of a profile."""
    text, key = _index(path, changed_ns), f"{json.dumps(name)}: "
    if (place := text.find(f'{key}{{"meta": ')) < 0:
        return _entries(path, changed_ns).get(name)
    with _opened(path, changed_ns):
        entry: dict[str, Any] = json.JSONDecoder().raw_decode(text, place + len(key))[0]
    return entry


@lru_cache(maxsize=256)
def _meta(path: Path, changed_ns: int, entry: str) -> ProfileMeta:
    return meta_of(_known(path, changed_ns, entry)["meta"])


def _known(path: Path, changed_ns: int, name: str) -> dict[str, Any]:
    """An entry that is there."""
    found = _entry(path, changed_ns, name)
    assert found is not None
    return found


@lru_cache(maxsize=16)
def _read(
    path: Path, changed_ns: int, entry: str, kernels: tuple[str, ...], token_buckets: tuple[int, ...] | None = None
) -> Profile:
    """The profile of an entry; the same object for the same arguments, as cost models keep what they make of it."""
    found, meta = _known(path, changed_ns, entry), _meta(path, changed_ns, entry)
    if chosen := [kernel for kernel in kernels if kernel in found["kernels"]]:
        meta = replace(meta, source={**meta.source, "server": chosen})
    if token_buckets is not None:
        meta = replace(meta, token_buckets=token_buckets)
    return Profile(meta, _tables(path, changed_ns, entry, tuple(chosen)))


@lru_cache(maxsize=16)
def _tables(path: Path, changed_ns: int, entry: str, kernels: tuple[str, ...]) -> dict[str, Table]:
    found = _known(path, changed_ns, entry)
    with _opened(path, changed_ns) as archive:
        tables = {name: _csv(archive, member) for name, member in found["tables"].items()}
        original = dict(tables)
        for kernel in kernels:
            for name, member in found["kernels"][kernel].items():
                changed = _csv(archive, member)
                tables[name] = merged(original[name], tables[name], changed) if name in tables else changed
    return tables


def _csv(archive: zipfile.ZipFile, member: str) -> Table:
    names, *rows = csv.reader(io.StringIO(archive.read(member).decode()))
    cells = zip(*rows, strict=True) if rows else [()] * len(names)
    return Table({name: _values(texts) for name, texts in zip(names, cells, strict=True)})


def _values(texts: Iterable[str]) -> list[Any]:
    """Whole numbers, numbers with NaN for an empty cell, or else texts."""
    texts = list(texts)
    for kind in (int, _number):
        with suppress(ValueError):
            return list(map(kind, texts))
    return texts


def _number(text: str) -> float:
    return float(text) if text else math.nan


def merged(original: Table, table: Table, changed: Table) -> Table:
    """`table` with the operators that `changed` has otherwise than `original`; all of `changed` where a table has no
    operators, or another kernel has changed nothing of it yet."""
    if table is original or "operator" not in table:
        return changed
    of_operator, known = _by_operator(table), _by_operator(original)
    for operator, rows in _by_operator(changed).items():
        before = known.get(operator)
        if before is None or not rows.equals(before):
            of_operator[operator] = rows
    return stacked(list(of_operator.values()))


def _by_operator(table: Table) -> dict[str, Table]:
    """The rows of each operator, in the order in which they come."""
    names = table["operator"].to_numpy()
    return {name: table[names == name] for name in dict.fromkeys(names.tolist())}


@contextmanager
def _opened(path: Path, changed_ns: int) -> Iterator[zipfile.ZipFile]:
    try:
        yield _archive(path, changed_ns)
    except (zipfile.BadZipFile, OSError, KeyError, ValueError) as error:
        raise ProfileError(f"{str(path)!r}: cannot be read: {error}") from None


@lru_cache(maxsize=2)
def _archive(path: Path, changed_ns: int) -> zipfile.ZipFile:
    """An archive that stays open, as its table of contents takes as long to read as a profile."""
    return zipfile.ZipFile(path)


def read_archive(path: Path) -> dict[str, Entry]:
    """All entries of an archive, by name; none if it is not there."""
    if not path.is_file():
        return {}
    key, found = (path, path.stat().st_mtime_ns), {}
    for name, entry in _entries(*key).items():
        changed = {
            kernel: {table: _read(*key, name, (kernel,)).rows[table] for table in members}
            for kernel, members in entry["kernels"].items()
        }
        found[name] = Entry(_read(*key, name, ()), changed)
    return found


def entry_name(model: Model, tensor_parallel_size: int) -> str:
    """The name of a profile in its archive."""
    return f"{base_name(model.name)}/{model.quantization.name}-{model.kv_dtype}/tp{tensor_parallel_size}"


def write_archive(path: Path, entries: Mapping[str, Entry], notice: str) -> None:
    """Write profiles by entry name, with times rounded to a nanosecond; equal profiles make an equal file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    members: dict[str, str] = {}  # the text of each table to its member

    def members_of(tables: Mapping[str, Table | pd.DataFrame]) -> dict[str, str]:
        texts = {
            name: frame_of(table).round(3).to_csv(index=False, lineterminator="\n") for name, table in tables.items()
        }
        return {name: members.setdefault(text, f"tables/{len(members)}.csv") for name, text in texts.items()}

    index = {
        name: {
            "meta": meta_values(entry.profile.meta),
            "tables": members_of(entry.profile.rows),
            "kernels": {kernel: members_of(tables) for kernel, tables in sorted(entry.kernels.items())},
        }
        for name, entry in sorted(entries.items())
    }
    texts = {NOTICE: notice, INDEX: json.dumps(index), **{member: text for text, member in members.items()}}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, text in texts.items():
            member = zipfile.ZipInfo(name, _DATE)
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, text)
