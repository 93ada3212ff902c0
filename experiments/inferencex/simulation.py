"""Simulations of all rows of a server by the functions of task=validate: as a user gets them, or with other constants
of the rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from experiments import composed
from harness.measured.inferencex import Rows, read_rows
from harness.measured.public_servers import PublicServer
from harness.validation.closed_loops import labels_of, simulate_row, system_of, with_errors
from simulator.importers.aiconfigurator.compile import steps_table
from simulator.importers.aiconfigurator.rules import SUSTAINED, Host
from simulator.profile.profile import Profile
from simulator.system import System


class CaseRows:
    """The rows of one server, resolved once and simulated as often as asked.

    Args:
        data: silicon_sample.csv.
        backend: the engine of the rows, as the file names it.
        overrides: more settings.
    """

    def __init__(self, case: PublicServer, data: Path, backend: str = "vllm", overrides: Sequence[str] = ()) -> None:
        asked = ("task=validate", f"validation.measured=inferencex:{data}", "plots=false", *overrides)
        self.config = composed(*asked, *(f"{key}={value}" for key, value in case.settings().items()))
        system = self.config.device.aiconfigurator_system
        assert system is not None
        select = {
            "model_path": case.model_path, "system": system, "precision": case.precision, "backend": backend,
            **({"backend_version": case.row_version} if case.row_version else {}),
            **({"day": case.row_day} if case.row_day else {}),
        }  # fmt: skip
        self.rows: Rows = read_rows(data, select, labels_of(self.config.validation))
        self._systems: dict[int, System] = {}

    def simulate(
        self, host: Host | None = None, only: list[int] | None = None, sustained: float = SUSTAINED
    ) -> pd.DataFrame:
        """The rows with simulated times and errors; `only` names places of rows.

        Args:
            host, sustained: constants of the rules in place of those of the profiles.
        """
        places = range(len(self.rows.table)) if only is None else only
        chosen = self.rows.table.iloc[list(places)].reset_index(drop=True)
        simulated: list[dict[str, Any]] = []
        for place, row in zip(places, chosen.itertuples(index=False), strict=True):
            system = self.system(place)
            system = system if host is None else _with_constants(system, host, sustained)
            simulated.append(simulate_row(system, row, self.config.validation, self.config.seed))
        return with_errors(chosen, simulated)

    def system(self, place: int) -> System:
        """The system of the row at a place; raises ConfigError where it cannot be simulated."""
        if place not in self._systems:
            self._systems[place] = system_of(self.config, self.rows.table.iloc[place])
        return self._systems[place]

    def each(self) -> Iterator[Any]:
        return self.rows.table.itertuples(index=False)


def _with_constants(system: System, host: Host, sustained: float) -> System:
    """`system` with these constants in its profile."""
    assert system.profile is not None
    meta = replace(
        system.profile.meta,
        eager_step_us=host.eager_layer_us * system.model.num_layers,
        synchronous_step_us=host.synchronous_step_us,
        synchronous_sequence_us=host.synchronous_sequence_us,
    )
    tables = dict(system.profile.tables)
    tables["tokens"] = _with_sustained(tables["tokens"], sustained)
    if "steps" in tables:  # attention between pieces of CUDA graphs
        tables["steps"] = steps_table(host)
    return replace(system, profile=Profile(meta, tables))


def _with_sustained(tokens: pd.DataFrame, factor: float) -> pd.DataFrame:
    """The times of `tokens`, compiled with SUSTAINED, as another factor of dense products makes them."""
    if factor == SUSTAINED:
        return tokens
    shortest = tokens.groupby("operator")["time_us"].transform("first")
    changed = shortest + (tokens["time_us"] - shortest) * factor / SUSTAINED
    return tokens.assign(time_us=changed.where(tokens["operator"].str.endswith("_proj"), tokens["time_us"]))
