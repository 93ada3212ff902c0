"""task=validate of public measurements: each row is simulated as a closed loop at its concurrency.

Each client sends `requests_per_client` requests, with lengths drawn uniformly between `length_ratio` times the stated
length and the stated length, as InferenceX's client does. TTFT and TPOT are means over requests.

A row cannot be right if the server would have had to compute faster than the device's large matrix products do:
requests/s, from the measured latencies, times 2·parameters·tokens operations; or if its TPOT is too short to read the
weights and the running requests' KV once at the datasheet's bandwidth; or if another row contradicts it. Such rows are
shown and named, and left out of the errors of all.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from engine.core.routing.vllm_balancer import VllmBalancer, VllmBalancerOptions
from engine.documents import read_yaml, user_path
from harness.config import RunConfig
from harness.config.composing import CONF
from harness.config.schema.tasks.validation import ValidationConfig
from harness.engines.resolving.system import resolve
from harness.engines.simulated import SimulatedEngine
from harness.errors import ConfigError
from harness.figures import write_validation_charts
from harness.measured.inferencex import Labels, Rows, read_rows
from harness.results.stored.files import ERRORS, VALIDATION, write_whole
from harness.validation.contradictions import contradicted
from harness.workload.arrivals import ClosedLoop
from harness.workload.trace import Trace, trace_table
from simulator.fleets.fleet_system import FleetSystem, ServerPool
from simulator.models.experts import Experts
from simulator.system import System

KIND = "inferencex"


def validate_rows(config: RunConfig, output_dir: Path, console: Console) -> dict[str, Any]:
    """Simulate every selected row and write their errors; returns the content of validation.json.

    Raises:
        TwinServeError: the file or the configuration cannot be used.
    """
    assert config.validation.measured is not None
    path = user_path(config.validation.measured.partition(":")[2])
    rows = read_rows(path, _selection(config), labels_of(config.validation))
    simulated = [
        simulate_row(system_of(config, row), row, config.validation, config.seed)
        for row in rows.table.itertuples(index=False)
    ]
    table = with_errors(rows.table, simulated)
    table["excluded"] = contradicted(table)
    document = _document(config, path, table, rows)
    write_whole(output_dir / ERRORS, lambda temporary: table.to_csv(temporary, index=False))
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    write_whole(output_dir / VALIDATION, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    if config.plots:
        write_validation_charts(output_dir, output_dir, config.plot)
    _print(document, table, console)
    console.print(f"results: {output_dir}", highlight=False, soft_wrap=True)
    return document


def _selection(config: RunConfig) -> dict[str, str]:
    """The columns that rows must match: what the user says, and the system of the configured device."""
    chosen = dict(config.validation.select)
    system = config.device.aiconfigurator_system
    if system is None:
        raise ConfigError(f"device={config.device.name}: has no aiconfigurator_system, by which rows name their GPU")
    if chosen.setdefault("system", system) != system:
        raise ConfigError(f"validation.select.system={chosen['system']}: the device is {system}")
    return {"backend": "vllm", **chosen}


def labels_of(client: ValidationConfig) -> Labels:
    """The layouts of servers that the labels of the rows stand for."""
    return Labels(client.ranks_from, client.shares_experts)


def system_of(config: RunConfig, row: Any) -> System:
    """The system that a row measured: its GPUs, its seats, and the tokens of its steps."""
    client = config.validation
    seats, tokens = client.seats or int(row.concurrency), config.max_num_batched_tokens
    if (beyond := client.tokens_beyond_prompt) is not None:
        tokens = int(row.isl) + (int(row.isl) if beyond == "prompt" else beyond)
    update = {
        "tensor_parallel_size": int(row.tensor_parallel_size),
        "data_parallel_size": int(row.data_parallel_size),
        "expert_parallel": config.expert_parallel or bool(row.expert_parallel),
        "max_num_seqs": seats,
        "max_num_batched_tokens": max(tokens, seats),
    }
    return resolve(config.model_copy(update=update))


def simulate_row(system: System, row: Any, client: ValidationConfig, seed: int) -> dict[str, Any]:
    """Mean TTFT and TPOT in ms of the closed loop of a row, and the share of the device's rate that it implies.

    Raises:
        ConfigError: a request does not fit.
    """
    concurrency = int(row.concurrency)
    num_requests = client.requests_per_client * concurrency
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {"arrival_time": np.zeros(num_requests)}
    for name, length in (("num_prompt_tokens", row.isl), ("num_output_tokens", row.osl)):
        shortest = max(1, round(client.length_ratio * length))
        columns[name] = rng.integers(shortest, length + 1, num_requests)
    trace = Trace(row.id, trace_table(columns), row.id)
    engine = SimulatedEngine(_servers(system), trace, ClosedLoop(num_requests, concurrency))
    engine.run()
    requests = engine.record.tables(trace, engine.unfinished()).requests
    finished = requests[requests["status"] == "finished"]
    if len(finished) < num_requests:
        raise ConfigError(f"{row.id}: {num_requests - len(finished)} requests were refused in the simulation")
    return {
        "simulated_ttft_ms": 1e3 * finished["ttft"].mean(),
        "simulated_tpot_ms": 1e3 * finished["tpot"].mean(),
        "implied_share_of_flops": _share_of_flops(system, row, client.length_ratio),
        "implied_share_of_bandwidth": _share_of_bandwidth(system, row, client.length_ratio),
    }


def _servers(system: System) -> FleetSystem:
    """The server, or its data-parallel ranks behind vLLM's balancer."""
    if system.data_parallel_size == 1:
        return FleetSystem.alone(system)
    pool = ServerPool("serve", system, system.data_parallel_size)
    delay_ms = read_yaml(CONF / "router" / "vllm_balancer.yaml")["view_delay_ms"]
    rule = VllmBalancer(VllmBalancerOptions(counts_in_flight=False))  # public rows of ranks are of 0.19 and before
    return FleetSystem((pool,), rule, int(delay_ms * 1e6))


def with_errors(rows: pd.DataFrame, simulated: list[dict[str, Any]]) -> pd.DataFrame:
    """`rows` with what was simulated, and the errors of TTFT and TPOT in percent."""
    table = rows.join(pd.DataFrame(simulated))
    for name in ("ttft", "tpot"):
        table[f"{name}_error_pct"] = 100 * (table[f"simulated_{name}_ms"] / table[f"{name}_ms"] - 1)
    return table


def num_gpus(row: Any) -> int:
    """GPUs of the server of a row."""
    return int(row.tensor_parallel_size * row.data_parallel_size)


def _share_of_flops(system: System, row: Any, length_ratio: float) -> float:
    """Operations/s that the measured latencies imply, as a share of what large matrix products of the device reach."""
    model, device = system.model.with_experts_on(1), system.device
    mean = (1 + length_ratio) / 2
    seconds = (row.ttft_ms + (mean * row.osl - 1) * row.tpot_ms) / 1e3
    requests_per_s = row.concurrency / seconds
    weights = sum(
        count * each.used * each.rows * each.columns
        for count, each in model.matrices()
        if not each.part.endswith("router")
    )
    operations = requests_per_s * mean * (row.isl + row.osl) * 2 * weights
    arithmetic = model.quantization.arithmetic
    peak = device.flops.get(arithmetic or model.dtype, device.flops[model.dtype])
    return float(operations / (num_gpus(row) * peak * device.flops_efficiency))


def _share_of_bandwidth(system: System, row: Any, length_ratio: float) -> float:
    """Bytes/s that the measured TPOT implies, as a share of the datasheet's: a step reads weights and running KV."""
    model, ranks = system.model, system.tensor_parallel_size
    if model.first(Experts) or model.sizes["num_sliding_layers"]:
        return 0.0  # which experts and which tokens are read is not known
    context = (1 + length_ratio) / 2 * (row.isl + row.osl / 2)
    num_tokens = min(row.concurrency * context, system.pool.num_tokens)
    read = model.weight_bytes(ranks) - model.vocab_size * model.hidden_size * model.dtype_bytes / ranks
    read += num_tokens * model.kv_bytes_per_token(ranks)
    return float(read / (row.tpot_ms / 1e3 * system.device.memory_bandwidth))


def _document(config: RunConfig, path: Path, table: pd.DataFrame, rows: Rows) -> dict[str, Any]:
    is_sound = table["excluded"] == ""
    sound, excluded = table[is_sound] if is_sound.any() else table, table[~is_sound]
    return {
        "kind": KIND,
        "measured": str(path),
        "select": _selection(config),
        "model": config.model.name,
        "device": config.device.name,
        "client": {
            "length_ratio": config.validation.length_ratio,
            "requests_per_client": config.validation.requests_per_client,
        },
        "rows": len(table),
        "left_out": rows.left_out,
        "excluded": {str(reason): each["id"].tolist() for reason, each in excluded.groupby("excluded")},
        "errors": {name: summarized(sound[f"{name}_error_pct"]) for name in ("ttft", "tpot")},
        "config": config.model_dump(mode="json"),
        "subtitle": _subtitle(config, path),
    }


def summarized(errors_pct: pd.Series[float]) -> dict[str, float]:
    """Median and 90th percentile of the absolute errors, and the median signed error, in percent."""
    return {
        "median_abs_pct": float(errors_pct.abs().median()),
        "p90_abs_pct": float(errors_pct.abs().quantile(0.9)),
        "median_pct": float(errors_pct.median()),
    }


def _subtitle(config: RunConfig, path: Path) -> str:
    chosen = ", ".join(f"{name} {value}" for name, value in _selection(config).items())
    return f"MEASURED: {path.name}, {chosen} · SIMULATED: {config.model.name} on {config.device.name}"


def _print(document: dict[str, Any], table: pd.DataFrame, console: Console) -> None:
    shown = Table(
        title=f"{document['model']} on {document['device']}: measured and simulated closed loops, ms",
        box=None,
        pad_edge=False,
    )
    for name in ("prompt", "output", "GPUs", "clients", "TTFT", "sim.", "error", "TPOT", "sim.", "error"):
        shown.add_column(name, justify="right", no_wrap=True)
    for row in table.itertuples(index=False):
        times = (
            f"{row.ttft_ms:.0f}", f"{row.simulated_ttft_ms:.0f}", f"{row.ttft_error_pct:+.0f}%",
            f"{row.tpot_ms:.1f}", f"{row.simulated_tpot_ms:.1f}", f"{row.tpot_error_pct:+.0f}%",
        )  # fmt: skip
        shape = (row.isl, row.osl, num_gpus(row), row.concurrency)
        shown.add_row(*map(str, shape), *times)
    console.print(shown)
    for name in ("ttft", "tpot"):
        of = document["errors"][name]
        console.print(
            f"{name.upper()}  median error {of['median_abs_pct']:.1f} %, 90th percentile {of['p90_abs_pct']:.1f} %, "
            f"signed {of['median_pct']:+.1f} %"
        )
    for reason, count in document["left_out"].items():
        console.print(f"! {count} rows left out: {reason}")
    for reason, ids in document["excluded"].items():
        console.print(f"! {len(ids)} rows cannot be right, and are not in these errors: {reason}")
