"""One public measurement beside its simulation: the row type of the board."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import pandas as pd

from harness.engines.resolving.known_error import APART, RunClass

FLEET = "fleet"  # the kind of load of several servers behind a router, each of which serves whole requests
FLEETS = (FLEET, APART)
METRICS = ("ttft", "tpot", "e2el", "throughput")  # ms, ms, ms, and output tokens/s


_REASONS = {
    "cost.profile='aiconfigurator": "kernels of SGLang or TensorRT-LLM were not timed for this model on this GPU",
    "does not fit": "the model does not fit on these GPUs",
    "leave it out": "a flag of the server is not simulated",
    "config.json": "the configuration of the model is not known",
    "not all served": "the simulation does not serve all requests",
    "were refused in the simulation": "the simulation does not serve all requests",
}


@dataclass(frozen=True)
class Point:
    """One benchmark of one server or fleet.

    Attributes:
        id: of the row in its source.
        source: who measured.
        link: where the measurement is published.
        engine, version: what served; not always what is simulated, which is vLLM.
        kind: what is simulated, as runs look their known error up.
        num_gpus, clients, prompt, output: GPUs, clients of a closed loop (None without), mean tokens.
        assumed: what the source does not say.
        fitted: whether a constant of the simulation was fitted to rows of this server.
        statistic: of the latencies.
        measured, predicted: by name of `METRICS`, those that the source tells.
        peer: estimates of another simulator, by metric, and whose.
        excluded: why the measurement cannot be right or was not simulated; "" where it counts.
    """

    id: str
    source: str
    link: str
    engine: str
    version: str
    kind: RunClass
    num_gpus: int
    clients: int | None
    prompt: float
    output: float
    assumed: str
    measured: Mapping[str, float]
    predicted: Mapping[str, float]
    fitted: bool = False
    statistic: str = "mean"
    peer: Mapping[str, float] | None = None
    peer_name: str = ""
    excluded: str = ""


class Found(NamedTuple):
    """What a job of a source found: points, and rows that make none, by reason."""

    points: list[Point]
    left_out: Mapping[str, int]


def flat(point: Point) -> dict[str, Any]:
    """The point as a row of the table; errors are signed, in percent, above 0 where the simulation says more."""
    row = {key: value for key, value in asdict(point).items() if key not in ("kind", "measured", "predicted", "peer")}
    row |= point.kind._asdict()
    for name in METRICS:
        told, found = point.measured.get(name), point.predicted.get(name)
        row |= {f"measured_{name}": told, f"predicted_{name}": found, f"{name}_error_pct": _error(found, told)}
        other = (point.peer or {}).get(name)
        row |= {f"peer_{name}": other, f"peer_{name}_error_pct": _error(other, told)}
    return row


def refusal(error: Exception) -> str:
    """Why a measurement was not simulated, without what names one of many."""
    text = str(error)
    return next((reason for part, reason in _REASONS.items() if part in text), text.split("; ")[0][:100])


def _error(found: float | None, told: float | None) -> float | None:
    return 100 * (found / told - 1) if found is not None and told else None


def table_of(points: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """The rows of points, those of each class together."""
    table = pd.DataFrame(list(points))
    whose, columns = ("measured_", "predicted_", "peer_"), table.columns.astype(str)
    told = [name for name in columns if name.startswith(whose) and name != "peer_name" or name.endswith("_error_pct")]
    table[told] = table[told].astype(float)
    return table.sort_values(
        ["source", "engine", "device", "model", "precision", "id"], kind="stable", ignore_index=True
    )


def loop_throughput(clients: int, output: float, ttft_ms: float, tpot_ms: float) -> float:
    """Output tokens/s of a closed loop, from its latencies."""
    return clients * output / (ttft_ms + (output - 1) * tpot_ms) * 1e3
