"""NVIDIA's database of operator times: where its tables are, and rows of them.

    <root>/systems/data/<system>/<family>/<backend>/<version>/<table>.parquet     latency in ms
    <root>/systems/<system>.yaml                                                  rates and memory of the system

The root is the installed package `aiconfigurator_core` (extra `kernels-db`; Apache-2.0), or a folder of the same
layout. A family that was not measured for the version asked for is read from the newest older one, as aiconfigurator
does itself; `Database.versions` says which versions were read.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import yaml

from simulator.profile.profile import ProfileError

PACKAGE = "aiconfigurator_core"
_BACKEND = "vllm"


def find_root(folder: Path | None = None) -> Path:
    """The `systems` folder of the installed package, or of `folder`; raises ProfileError if there is none."""
    if folder is None:
        spec = importlib.util.find_spec(PACKAGE)
        if spec is None or not spec.submodule_search_locations:
            raise ProfileError(f"{PACKAGE} is not installed: pip install 'twinserve[kernels-db]'")
        folder = Path(spec.submodule_search_locations[0])
    for root in (folder, folder / "systems"):
        if (root / "data").is_dir():
            return root
    raise ProfileError(f"{str(folder)!r}: no folder systems/data of {PACKAGE} in it")


class Database:
    """Operator times of one system and backend version.

    Args:
        root: as of `find_root`.
        system: a folder of `data`, such as h100_sxm.
        backend: the serving engine whose kernels were timed.
        version: of the backend; None takes the newest that has GEMMs.

    Attributes:
        versions: family of tables to the version that was read.
        num_rows: rows that were read.
        device: the name of the GPU, as its driver spells it.

    Raises:
        ProfileError: there is no such system, backend or version.
    """

    def __init__(self, root: Path, system: str, backend: str = _BACKEND, version: str | None = None) -> None:
        self._root, self._data = root, root / "data" / system
        if not self._data.is_dir():
            known = ", ".join(sorted(path.name for path in (root / "data").iterdir() if path.is_dir()))
            raise ProfileError(f"{PACKAGE} has no system {system!r} (there: {known})")
        self.system = system
        self.backend = backend
        there = _versions(self._data / "gemm" / backend)
        if not there:
            raise ProfileError(f"{PACKAGE} has no GEMMs of {system}/{backend}")
        if version is not None and version not in there:
            raise ProfileError(f"{PACKAGE} has no {system}/{backend}/{version} (there: {', '.join(there)})")
        self.version = version or there[-1]
        self.versions: dict[str, str] = {}
        self.num_rows = 0
        self.device = ""
        self.rates = _read_rates(root / f"{system}.yaml")

    def rows(
        self, family: str, table: str, *, source: str | None = None, version: str | None = None, **where: Any
    ) -> pd.DataFrame:
        """Rows of a table whose columns have the values `where`, with the time in a column `time_us`.

        A column that an old table lacks is taken to have the value asked for. The result is empty if there is no table.

        Args:
            source: whose kernels were timed, if not the backend's: nccl, trtllm, sglang. The newest version that has
                the table is read, or `version`.
            version: of the backend or source, and no other, in place of that of the database or the newest before it.
        """
        folder = self.folder(family, source, table, version)
        if folder is None or not (path := folder / f"{table}.parquet").is_file():
            return pd.DataFrame(columns=["time_us"])
        rows = _read_rows(path, path.stat().st_mtime_ns, tuple(where.items()))
        self.versions["/".join(filter(None, (family, source)))] = folder.name
        self.num_rows += len(rows)
        if source is None and len(rows) and "device" in rows.columns:
            self.device = str(rows["device"].iloc[0])
        return rows.assign(time_us=1e3 * rows["latency"].astype(np.float64))

    def of_system(self, system: str) -> Database:
        """The tables of the same version of another system."""
        return Database(self._root, system, self.backend, self.version)

    def folder(self, family: str, source: str | None, table: str, version: str | None = None) -> Path | None:
        """The folder of a family: of the version asked for, or else of the newest version before it, or the first."""
        parent = self._data / family / (source or self.backend)
        there = _versions(parent)
        if source:
            there = [name for name in there if (parent / name / f"{table}.parquet").is_file()]
        if not there:
            return None
        if version is not None:
            return parent / version if version in there else None
        older = there if source else [name for name in there if _order(name) <= _order(self.version)]
        return parent / (older[-1] if older else there[0])


@lru_cache(maxsize=64)  # profiles of many models take the same rows
def _read_rows(path: Path, changed_ns: int, where: tuple[tuple[str, Any], ...]) -> pd.DataFrame:
    import pyarrow.parquet as pq  # 8 MB of memory and 15 ms, which runs without the database do not need

    try:
        names = pq.read_schema(path).names
        filters = [(name, "=", value) for name, value in where if name in names]
        rows: pd.DataFrame = pq.read_table(path, filters=filters or None).to_pandas()
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise ProfileError(f"{str(path)!r}: cannot be read: {str(error).splitlines()[0]}") from None
    if "latency" not in rows.columns:
        raise ProfileError(f"{str(path)!r}: no column latency")
    return rows


def _versions(folder: Path) -> list[str]:
    """The released versions in a folder, oldest first."""
    names = [path.name for path in folder.glob("*") if re.fullmatch(r"\d+(\.\d+)+(rc\d+|\.post\d+)?", path.name)]
    return sorted(names, key=_order)


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _read_rates(path: Path) -> Mapping[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        gpu, node = values["gpu"], values["node"]
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError):
        raise ProfileError(f"{str(path)!r}: no description of a system with keys gpu and node") from None
    return {**gpu, **node}
