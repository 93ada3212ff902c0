"""All rows of silicon_sample.csv as points of the board: vLLM's by their servers, others as `other_engines` says.

silicon_sample.csv lies in the package aiconfigurator-core, in systems/: InferenceX, and NVIDIA's own rows. Each row is
simulated as a closed loop, as by `task=validate validation.measured=inferencex:`, with the profiles that come with the
project and the servers of harness/measured/public_servers.py. The file does not say whether its times are means; its
throughput is derived from them, measured and predicted alike. Beside them stand estimates of aiconfigurator itself,
from experiments/results/inferencex_peer.csv, which peer.py makes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments import RESULTS
from experiments.board.point import Found, Point, loop_throughput, refusal
from experiments.inferencex.load import Load
from experiments.inferencex.other_engines import DEVICES, ENGINES, other_server
from experiments.inferencex.row_servers import RowServers
from experiments.inferencex.simulation import CaseRows
from harness.engines.resolving.known_error import CLOSED_LOOP, RunClass, run_class
from harness.errors import MeasuredRunError, TwinServeError
from harness.measured.inferencex import days
from harness.measured.public_servers import SERVERS, PublicServer
from harness.validation.closed_loops import num_gpus
from harness.validation.contradictions import contradicted

_APART = "prefill and decode on different GPUs"
_LINK = "https://github.com/ai-dynamo/aiconfigurator, silicon_sample.csv"
_PEER = RESULTS / "inferencex_peer.csv"
_FITTED = {("Llama-3.1-70B FP8", "h100-80gb", None), ("Qwen3-32B", "h100-80gb", 2)}  # server, GPU and number of GPUs
_MOST_GPUS = 8
_COLUMNS = ("backend", "model_path", "precision", "system")
_UNDATED = "the day on which these rows were measured is not known"
_DIGITS = {"ttft_ms": 1, "tpot_ms": 2}  # to which the file has some rows twice


class Selected(NamedTuple):
    """What rows of one server have in common; `server` is its place in SERVERS, None of other engines and of the rows
    of vLLM that are no known server's. `version` is told of SGLang's only, whose versions have times of their own."""

    backend: str
    model_path: str
    precision: str
    system: str
    server: int | None = None
    version: str = ""


def selections(data: Path) -> Iterator[Selected]:
    """The rows of each server, and those that are of none."""
    table = pd.read_csv(data)
    for backend, model_path, precision, system in _texts(table)[list(_COLUMNS)].drop_duplicates().to_numpy().tolist():
        selected = Selected(backend, model_path, precision, system)
        of_servers = [selected._replace(server=place) for place in _servers(selected)]
        of_others = [selected]
        if backend == "sglang":
            versions = _texts(table)[_of(table, selected)]["backend_version"].unique().tolist()
            of_others = [selected._replace(version=version) for version in versions]
        yield from (each for each in (*of_servers, *of_others) if _of(table, each).any())


def _texts(table: pd.DataFrame) -> pd.DataFrame:
    return table[[*_COLUMNS, "backend_version"]].astype(object).fillna("nan").astype(str)


def _servers(selected: Selected) -> list[int]:
    """The places of the servers of vLLM that rows can be of."""
    asked = (selected.model_path, selected.precision, DEVICES[selected.system])
    known = enumerate((server.model_path, server.precision, server.device) for server in SERVERS)
    return [place for place, each in known if each == asked] if selected.backend == "vllm" else []


def _of(table: pd.DataFrame, selected: Selected) -> pd.Series[bool]:
    """Which rows are of a server, or of none."""
    texts = _texts(table)
    same = (texts[list(_COLUMNS)] == list(selected[:4])).all(axis=1)
    if selected.version:
        same &= texts["backend_version"] == selected.version
    if selected.server is None:
        for place in _servers(selected):
            same &= ~_of(table, selected._replace(server=place))
        return same
    server = SERVERS[selected.server]
    versions = texts["backend_version"].isin([server.row_version]) if server.row_version else True
    return same & versions & days(table).str.startswith(server.row_day)


def points(
    data: Path, selected: Selected, every: int = 1, cost: str = "profiled", history: Path | None = None
) -> Found:
    """The points of the rows of a server; `every` n-th of them. `history` has old tables of kernels."""
    backend, model_path, precision, system, place, version = selected
    server = None if place is None else SERVERS[place]
    of_rows: RowServers | None = None
    if backend != "vllm" and (newest := other_server(model_path, precision, system)) is not None:
        of_rows = RowServers(newest._replace(row_version=version), data, backend, system, cost, history)
        server = of_rows.of_version(version)
    if server is None:
        reason = _UNDATED if _servers(selected) else "no server is known for these rows"
        return Found([], _left_out(data, selected, reason))
    if cost != "profiled":
        server = server._replace(kernels="")
    try:
        rows = CaseRows(server, data, backend, [f"cost={cost}"])
    except MeasuredRunError:
        return Found([], _left_out(data, selected, "pipeline, data or expert parallelism"))
    is_repeated = rows.rows.table.drop(columns="id").round(_DIGITS).duplicated().to_numpy()
    chosen, unsimulated = [], {**rows.rows.left_out}
    unsimulated.pop(_APART, None)  # for which there is `apart`
    if is_repeated.any():
        unsimulated["repeated"] = unsimulated.get("repeated", 0) + int(is_repeated.sum())
    each_day, versions = _days(data), _versions(data)
    cases: dict[str, CaseRows] = {}
    for place in np.flatnonzero(~is_repeated)[::every].tolist():
        try:
            row = rows.rows.table.iloc[place]
            if num_gpus(row) > _MOST_GPUS:
                raise TwinServeError(f"more than {_MOST_GPUS} GPUs, which are no plain tensor parallelism")
            case = rows
            if of_rows is not None:
                load = Load(each_day[row.id], num_gpus(row), int(row.isl), int(row.osl), int(row.concurrency))
                asked = of_rows.of_row(version or versions[row.id][0], load)
                name = str(asked)
                case = cases[name] = cases.get(name) or CaseRows(asked, data, backend, [f"cost={cost}"])
            simulated = case.simulate(only=[place])
        except TwinServeError as error:
            reason = refusal(error)
            unsimulated[reason] = unsimulated.get(reason, 0) + 1
            continue
        kind = run_class(case.system(place), CLOSED_LOOP)
        chosen.append(simulated.assign(kind=pd.Series([kind], dtype=object)))
    if not chosen:
        return Found([], unsimulated)
    table = pd.concat(chosen, ignore_index=True)
    table["excluded"] = [server.excluded or reason for reason in contradicted(table)]
    found = [_point(row, server, ENGINES[backend], versions) for row in table.itertuples(index=False)]
    return Found(found, unsimulated)


def _point(row: Any, server: PublicServer, engine: str, versions: dict[str, tuple[str, str]]) -> Point:
    output, clients = (1 + server.length_ratio) / 2 * row.osl, int(row.concurrency)
    measured, predicted = {"ttft": row.ttft_ms, "tpot": row.tpot_ms}, {"ttft": row.simulated_ttft_ms}
    predicted["tpot"] = row.simulated_tpot_ms
    kind: RunClass = row.kind
    version, source = versions[row.id]
    gpus = num_gpus(row)
    is_fitted = any((server.name, server.device, each) in _FITTED for each in (None, gpus))
    point = Point(
        id=row.id, source=source, link=_LINK, engine=engine, version=version or server.vllm_version, kind=kind,
        num_gpus=gpus, clients=clients, prompt=(1 + server.length_ratio) / 2 * row.isl,
        output=output, assumed=server.why, fitted=is_fitted and engine == "vLLM", excluded=row.excluded,
        measured={**measured, "throughput": loop_throughput(clients, output, measured["ttft"], measured["tpot"])},
        predicted={**predicted, "throughput": loop_throughput(clients, output, predicted["ttft"], predicted["tpot"])},
    )  # fmt: skip
    peer = _peer().get(row.id)
    if peer is None or kind.cost != "kernels":
        return point
    return replace(point, peer=peer, peer_name="aiconfigurator 0.12.0")


@cache
def _versions(data: Path) -> dict[str, tuple[str, str]]:
    """The version of the engine and who measured, by the id of the row."""
    table = pd.read_csv(data)
    sources = table["silicon_data_source"].astype(str)
    is_own = sources.str.startswith("source_file=/")  # a folder of whoever made the file
    told = zip(table["backend_version"].fillna("").astype(str), is_own, strict=True)
    named = [(version, "NVIDIA" if own else "InferenceX") for version, own in told]
    return dict(zip(table["id"].astype(str), named, strict=True))


@cache
def _days(data: Path) -> dict[str, str]:
    """On which day each row was measured, by the id of the row."""
    table = pd.read_csv(data)
    return dict(zip(table["id"].astype(str), days(table), strict=True))


@cache
def _peer() -> dict[str, dict[str, float]]:
    table = pd.read_csv(_PEER).drop_duplicates("id").set_index("id").dropna(subset=["ttft_ms", "tpot_ms"])
    return {str(name): {"ttft": float(row["ttft_ms"]), "tpot": float(row["tpot_ms"])} for name, row in table.iterrows()}


def _left_out(data: Path, selected: Selected, reason: str) -> dict[str, int]:
    """How many rows cannot be simulated for this `reason`, but for those with prompts and decodes apart."""
    table = pd.read_csv(data)
    table = table[_of(table, selected)]
    count = int((table["mode"] == "agg").sum())
    return {reason: count} if count else {}
