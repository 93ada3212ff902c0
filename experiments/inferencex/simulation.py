"""Simulations of all rows of a case, by the functions of task=validate; a profile is compiled once for all its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from experiments import composed
from experiments.inferencex.cases import Case
from harness.config import RunConfig
from harness.errors import ConfigError
from harness.measured.inferencex import Rows, read_rows
from harness.validation.closed_loops import simulate_row, system_of, with_errors
from simulator.importers import open_profile
from simulator.importers.aiconfigurator.compile import steps_table
from simulator.importers.aiconfigurator.rules import HOST, SUSTAINED, Host
from simulator.profile.graph_sizes import graph_sizes
from simulator.profile.profile import Profile, ProfileError
from simulator.system import CostChoice, System


class CaseRows:
    """The rows of one case, resolved once and simulated as often as asked.

    Args:
        data: silicon_sample.csv.
        root: folder of aiconfigurator_core; None takes the installed package.
        history: the same of a version that holds tables of old versions of vLLM, for cases that name one.

    Raises:
        ConfigError: the database has no operators for the case.
    """

    def __init__(self, case: Case, data: Path, root: str | None, history: str | None = None) -> None:
        self.case = case
        self.config = composed(*case.overrides())
        system = self.config.device.aiconfigurator_system
        assert system is not None
        self._client = self.config.validation.model_copy(update={"length_ratio": case.length_ratio})
        select = {
            "model_path": case.model_path, "system": system, "precision": case.precision, "backend": "vllm",
        }  # fmt: skip
        self.rows: Rows = read_rows(data, select)
        folder = history if case.tables.startswith("/") else root
        self._source = ":".join(filter(None, ("aiconfigurator", folder, system + case.tables)))
        self._profiles: dict[int, Profile] = {}
        bare = self.config.model_copy(update={"cost": composed("cost=roofline").cost})
        self._systems = [system_of(_of_row(bare, case, row), row, case.max_num_seqs) for row in self.each()]

    def simulate(self, host: Host = HOST, only: list[int] | None = None, sustained: float = SUSTAINED) -> pd.DataFrame:
        """The rows with simulated times and errors; `only` names places of rows.

        Args:
            host, sustained: the constants of the rules.
        """
        places = range(len(self._systems)) if only is None else only
        chosen = self.rows.table.iloc[list(places)].reset_index(drop=True)
        simulated: list[dict[str, Any]] = []
        for place, row in zip(places, chosen.itertuples(index=False), strict=True):
            system = self._priced(self._systems[place], host, sustained)
            simulated.append(simulate_row(system, row, self._client, self.config.seed))
        return with_errors(chosen, simulated)

    def drop_duplicates(self) -> None:
        """Keep one of the rows that were measured alike: the file repeats some under other names."""
        kept = ~self.rows.table.drop(columns="id").duplicated()
        self._systems = [system for system, is_kept in zip(self._systems, kept, strict=True) if is_kept]
        self.rows.left_out["repeated"] = int((~kept).sum())
        self.rows = self.rows._replace(table=self.rows.table[kept].reset_index(drop=True))

    def each(self) -> Iterator[Any]:
        return self.rows.table.itertuples(index=False)

    def _priced(self, system: System, host: Host, sustained: float) -> System:
        """`system` with the profile of its ranks, its CUDA graphs and these constants."""
        ranks = system.tensor_parallel_size
        if ranks not in self._profiles:
            try:
                self._profiles[ranks] = open_profile(self._source, system.model, ranks, 256, system.device)
            except ProfileError as error:
                raise ConfigError(f"{self.case.key}: {error}") from None
        compiled = self._profiles[ranks]
        meta = replace(
            compiled.meta,
            token_buckets=_graphs(self.case, system.max_num_seqs),
            eager_step_us=host.eager_layer_us * system.model.num_layers,
            synchronous_step_us=host.synchronous_step_us,
            synchronous_sequence_us=host.synchronous_sequence_us,
        )
        shown = host._replace(step_us=0.0) if self.case.has_full_graphs else host
        tokens = _with_sustained(compiled.tables["tokens"], sustained)
        profile = Profile(meta, {**compiled.tables, "tokens": tokens, "steps": steps_table(shown)})
        return replace(system, cost=CostChoice("profiled", self._source, "mean"), profile=profile)


def _of_row(config: RunConfig, case: Case, row: Any) -> RunConfig:
    """`config` with the tokens a step that the server of this row had."""
    if case.tokens_beyond_prompt is None:
        return config
    return config.model_copy(update={"max_num_batched_tokens": int(row.isl) + case.tokens_beyond_prompt})


def _with_sustained(tokens: pd.DataFrame, factor: float) -> pd.DataFrame:
    """The times of `tokens`, compiled with SUSTAINED, as another factor of dense products makes them."""
    if factor == SUSTAINED:
        return tokens
    shortest = tokens.groupby("operator")["time_us"].transform("first")
    changed = shortest + (tokens["time_us"] - shortest) * factor / SUSTAINED
    return tokens.assign(time_us=changed.where(tokens["operator"].str.endswith("_proj"), tokens["time_us"]))


def _graphs(case: Case, max_num_seqs: int) -> tuple[int, ...]:
    """Token counts of the server's CUDA graphs; beyond vLLM's own choice in steps of 16."""
    if case.max_graph_tokens is None:
        return graph_sizes(max_num_seqs)
    own = graph_sizes(case.max_graph_tokens)
    return (*own, *range(own[-1] + 16, case.max_graph_tokens + 1, 16))
