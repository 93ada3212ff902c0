"""Operator times that come with the project, from which the profile of a model that has none of its own is compiled.

    simulator/profiles/operators/<system>.yaml                                        rates of a system
    simulator/profiles/operators/data/<system>/<family>/<backend>/<version>/*.parquet

The folder has the layout of NVIDIA's database, of which it holds what `compile` reads, with times of four digits;
`experiments.operator_tables` writes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pandas as pd

from simulator.device import Device
from simulator.importers.aiconfigurator.compile import compile_profile, steps_table
from simulator.importers.aiconfigurator.database import Database
from simulator.importers.aiconfigurator.experts.deep_ep import deep_ep_exchange
from simulator.importers.aiconfigurator.rules import HOST
from simulator.importers.aiconfigurator.server_kernels import kernels_of
from simulator.models.model import Model
from simulator.profile.archive import merged
from simulator.profile.graph_sizes import graph_sizes
from simulator.profile.profile import LIKE_EXPERTS, Profile, ProfileError
from simulator.table import table_of

FOLDER = Path(__file__).resolve().parents[2] / "profiles" / "operators"


def compiled_profile(
    system: str,
    model: Model,
    tensor_parallel_size: int,
    max_num_seqs: int,
    device: Device,
    kernels: Iterable[str] = (),
    max_graph_tokens: int | None = None,
) -> Profile | None:
    """The profile of a model on GPUs of a system, with those of `kernels` that change its times and were measured; None
    if not all operators were. Arguments are those of `simulator.profile.archive.find_profile`."""
    if not (FOLDER / "data" / system).is_dir():
        return None
    return _compiled(system, model, tensor_parallel_size, max_num_seqs, device, tuple(kernels), max_graph_tokens)


@lru_cache(maxsize=16)  # as below
def shipped_exchange(system: str, model: Model, backend: str) -> pd.DataFrame | None:
    """What the model's ranks exchange by DeepEP's kernels, as of `deep_ep_exchange`; None if it was not timed."""
    with suppress(ProfileError):
        return deep_ep_exchange(Database(FOLDER, system), model, backend)
    return None


@lru_cache(maxsize=16)  # the same object for the same arguments, as cost models keep what they make of it
def _compiled(
    system: str,
    model: Model,
    ranks: int,
    max_num_seqs: int,
    device: Device,
    kernels: tuple[str, ...],
    max_graph_tokens: int | None,
) -> Profile | None:
    def compiled(kernel: str = "") -> Profile:
        name = f"{FOLDER}:{system}{kernel and '+'}{kernel}"
        return compile_profile(Path(name), model, ranks, max_num_seqs, device)

    profile, ran = None, []
    for choice in ("", LIKE_EXPERTS):
        with suppress(ProfileError):
            profile = compiled(choice)
            ran = [choice] if choice else []
            break
    if profile is None:
        return None
    tables = dict(profile.rows)
    for kernel, table in kernels_of(system, model, ranks):
        if kernel in kernels:
            with suppress(ProfileError):  # not measured on this system
                known, other = profile.rows.get(table), compiled(kernel).rows.get(table)
                if other is not None and (known is None or not other.equals(known)):
                    tables[table] = other if known is None else merged(known, tables[table], other)
                    ran += [kernel] if kernel not in ran else []
    if "piecewise_graphs" in kernels:
        tables["steps"] = table_of(steps_table(HOST))
        ran.append("piecewise_graphs")
    source = {**profile.meta.source, **({"server": ran} if ran else {})}
    buckets = graph_sizes(max_num_seqs, max_graph_tokens)
    return Profile(replace(profile.meta, source=source, token_buckets=buckets), tables)
