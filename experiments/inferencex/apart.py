"""Rows of silicon_sample.csv with prompts and decodes on different GPUs, simulated as fleets: points of the board.

274 of 1,602 such rows tell how many servers there were and on how many GPUs each, and 267 of these, in their id, with
how many clients. A row is a pool of servers for prompts and one for decodes, each with its own tensor parallelism,
data-parallel ranks and whole experts. Nothing is fitted. Seats and tokens of a step are those of the recipe by which
the row was run (`recipes.csv`), and so are the ranks of vLLM's servers, which the file leaves out;
where no recipe is known, they are vLLM's defaults. Requests are spread as by the frontends of Dynamo that the recipe
starts, or by one (`experiments.inferencex.frontends`). The network has 400 Gbit/s for each GPU. All have the scheduler
of vLLM; SGLang's and TensorRT-LLM's are simulated so, too, the latter with the times of its kernels; SGLang's were not
timed for these models. Clients are InferenceX's, with lengths from 0.8 of those stated, and send 10 requests each, or 3
where that is more than 2,000.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments import composed
from experiments.board.point import Found, Point, loop_throughput, refusal
from experiments.inferencex.other_engines import DEVICES, ENGINES, other_server, trtllm_kernels
from harness.config import RunConfig
from harness.config.schema.fleet import DisaggregatedFleet, PoolConfig, RouterConfig
from harness.config.targets import import_targets
from harness.engines.resolving.fleet import resolve_fleet
from harness.engines.resolving.known_error import APART, run_class
from harness.engines.simulated import SimulatedEngine
from harness.errors import ConfigError, TwinServeError
from harness.measured.public_servers import PublicServer
from harness.workload.arrivals import ClosedLoop
from harness.workload.trace import Trace, trace_table
from simulator.fleets.fleet_system import FleetSystem

FILE = Path(__file__).parent / "recipes.csv"
_LINK = "https://github.com/ai-dynamo/aiconfigurator, silicon_sample.csv"
_RULE = "experiments.inferencex.frontends:Frontends"
_KIMI = "moonshotai/Kimi-K2.5"
_ASSUMED = "400 Gbit/s a GPU"
_DEFAULTS = f"vLLM's defaults, servers in turn, {_ASSUMED}"
_MOST_CLIENTS = 1024  # whose simulation takes a minute
_NODE = 8  # GPUs
_RACKS = ("gb200", "gb300")  # up to 72 GPUs of which are one domain of NVLink
_UNTIMED = "prefill and decode on different GPUs, for so many of which kernels or exchanges were not timed"
_CUT = "ranks of one server that each have a part of every expert"
Selected = tuple[str, str, str, str]  # backend, model_path, precision, system


class Side(NamedTuple):
    """The servers for prompts, or those for decodes."""

    servers: int
    tensor: int
    ranks: int
    shares_out: bool
    seats: int | None = None
    tokens: int | None = None

    @property
    def num_gpus(self) -> int:
        return self.servers * self.tensor * self.ranks

    def pool(self) -> PoolConfig:
        return PoolConfig(
            replicas=self.servers,
            tensor_parallel_size=self.tensor,
            data_parallel_size=self.ranks,
            expert_parallel=self.shares_out,
            max_num_seqs=self.seats,
            max_num_batched_tokens=self.tokens,
        )

    def by(self, recipe: Any, name: str) -> Side:
        """These servers with what a recipe says of the side of this `name`."""
        told = (getattr(recipe, f"{name}_{key}") for key in ("ranks", "seats", "tokens"))
        ranks, seats, tokens = (None if pd.isna(value) else int(value) for value in told)
        ranks = ranks or self.ranks
        tensor = self.tensor * self.ranks // ranks
        return self._replace(tensor=tensor, ranks=ranks, seats=seats, tokens=tokens)


def rows(data: Path) -> pd.DataFrame:
    """The rows with prompts and decodes on different GPUs."""
    table = pd.read_csv(data, low_memory=False)
    table = table[table["mode"] == "disagg"]
    return table.assign(clients=table["id"].str.extract(r"_c(\d+)_")[0].astype(float))


def selections(data: Path) -> Iterator[Selected]:
    """What rows of one model on one GPU have in common."""
    names = ["backend", "model_path", "precision", "system"]
    yield from rows(data)[names].drop_duplicates().itertuples(index=False, name=None)  # plain tuples, which can be sent


def points(data: Path, selected: Selected, every: int = 1) -> Found:
    """The points of the rows of a selection; `every` n-th of them."""
    backend, model_path, precision, system = selected
    table = rows(data)
    for name, value in zip(("backend", "model_path", "precision", "system"), selected, strict=True):
        table = table[table[name] == value]
    left_out: Counter[str] = Counter()
    chosen: list[Any] = []
    for row in table.itertuples(index=False):
        reason = unsimulated(row)
        left_out.update([reason] if reason else [])
        chosen += [] if reason else [row]
    if not chosen or (server := _server(backend, model_path, precision, system)) is None:
        left_out.update(["no server is known for these rows"] * len(chosen))
        return Found([], left_out)
    server = server._replace(more={"cost.profile": kernels(data, backend, system, server)})
    import_targets({"router": {"rule": _RULE}})
    config = composed("fleet=disaggregated", "engine.compress=true", *_settings(server))
    found = []
    for row in chosen[::every]:
        try:
            found.append(_point(row, config, server))
        except TwinServeError as error:
            left_out[_UNTIMED if "cost.profile" in str(error) else refusal(error)] += 1
    return Found(found, left_out)


def kernels(data: Path, backend: str, system: str, server: PublicServer) -> str:
    """The profile out of the package that `data` lies in, as in `cost.profile`."""
    if backend == "trtllm":
        return trtllm_kernels(data, system, server)[0]
    return f"aiconfigurator:{data.resolve().parent}:{system}"


def unsimulated(row: Any) -> str:
    """Why a row is not simulated; "" where it is."""
    if np.isnan(row.prefill_num_workers):
        return "prefill and decode on different GPUs, on how many is not told"
    if np.isnan(row.clients):
        return "prefill and decode on different GPUs, the number of clients is not told"
    if row.clients > _MOST_CLIENTS:
        return f"prefill and decode on different GPUs, for more than {_MOST_CLIENTS:,} clients"
    for name in ("prefill", "decode"):
        gpus = getattr(row, f"{name}_tp_size") * getattr(row, f"{name}_attention_dp_size")
        if getattr(row, f"{name}_attention_dp_size") > 1 and getattr(row, f"{name}_moe_ep_size") != gpus:
            return _CUT
        if gpus > _NODE and row.system not in _RACKS:
            return f"servers of more than {_NODE} GPUs, over a network"
    return ""


@cache
def _recipes() -> dict[str, Any]:
    """The recipes by the ids of their rows."""
    return {str(row.id): row for row in pd.read_csv(FILE).itertuples(index=False)}


def _side(row: Any, name: str) -> Side:
    servers, tensor, ranks, experts = (
        int(getattr(row, f"{name}_{size}")) for size in ("num_workers", "tp_size", "attention_dp_size", "moe_ep_size")
    )
    side = Side(servers, tensor, ranks, experts > 1)
    recipe = _recipes().get(row.id)
    return side if recipe is None else side.by(recipe, name)


def _server(backend: str, model_path: str, precision: str, system: str) -> PublicServer | None:
    if model_path != _KIMI:
        return other_server(model_path, precision, system)
    version = "0.18.0" if backend == "vllm" else "0.24.0"
    return PublicServer(
        "Kimi-K2.5 fp4", _KIMI, precision, DEVICES[system], "kimi-k2.5-nvfp4", "nvfp4", version, _DEFAULTS
    )


def _settings(server: PublicServer) -> Iterator[str]:
    client = ("validation.", "frontend")
    yield from (f"{key}={value}" for key, value in server.settings().items() if not key.startswith(client))
    yield from ("max_num_seqs=${vllm_version:max_num_seqs}",)
    yield "max_num_batched_tokens=${vllm_version:max_num_batched_tokens}"


def _point(row: Any, config: RunConfig, server: PublicServer) -> Point:
    prefill, decode = _side(row, "prefill"), _side(row, "decode")
    number = int(getattr(_recipes().get(row.id), "frontends", 1))
    routers = [RouterConfig(rule=_RULE, options={"number": number, "seed": seed}) for seed in range(2)]
    pools = DisaggregatedFleet(prefill=prefill.pool(), decode=decode.pool(), decode_router=routers[1])
    fleet = resolve_fleet(config.model_copy(update={"fleet": pools, "router": routers[0]}))
    ttft, tpot = simulate(fleet, row, server.length_ratio)
    clients, output = int(row.clients), (1 + server.length_ratio) / 2 * row.osl
    measured, predicted = {"ttft": row.silicon_ttft_ms, "tpot": row.silicon_tpot_ms}, {"ttft": ttft, "tpot": tpot}
    for times in (measured, predicted):
        times["throughput"] = loop_throughput(clients, output, times["ttft"], times["tpot"])
    kinds = [run_class(pool.system, APART) for pool in fleet.pools]
    kind = next((each for each in kinds if each.cost != "kernels"), kinds[-1])
    return Point(
        id=row.id, source="InferenceX" if server.length_ratio < 1 else "NVIDIA", link=_LINK,
        engine=ENGINES[row.backend], version=str(row.backend_version), kind=kind,
        num_gpus=prefill.num_gpus + decode.num_gpus, clients=clients, prompt=(1 + server.length_ratio) / 2 * row.isl,
        output=output, assumed=_ASSUMED if row.id in _recipes() else _DEFAULTS, measured=measured, predicted=predicted,
    )  # fmt: skip


def simulate(fleet: FleetSystem, row: Any, length_ratio: float) -> tuple[float, float]:
    """Mean TTFT and TPOT in ms of the closed loop of a row; raises ConfigError where not all requests are served."""
    clients = int(row.clients)
    count, rng = max(min(10 * clients, 2000), 3 * clients), np.random.default_rng(0)
    columns: dict[str, Any] = {"arrival_time": np.zeros(count)}
    for name, length in (("num_prompt_tokens", row.isl), ("num_output_tokens", row.osl)):
        columns[name] = rng.integers(max(1, round(length_ratio * length)), length + 1, count)
    trace = Trace(row.id, trace_table(columns), row.id)
    engine = SimulatedEngine(fleet, trace, ClosedLoop(count, clients))
    engine.run()
    requests = engine.record.tables(trace, engine.unfinished()).requests
    if not (requests["status"] == "finished").all():
        raise ConfigError(f"{row.id}: not all served")
    return 1e3 * float(requests["ttft"].mean()), 1e3 * float(requests["tpot"].mean())
