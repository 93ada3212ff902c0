"""What is known of the capacity of one configuration: a row of the table, and its sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from harness.config import RunConfig, SimEngine
from harness.config.pools import pools_of
from harness.config.schema.tasks.capacity import CapacityConfig
from harness.engines.resolving.known_error import known_error_of, load_of
from harness.engines.resolving.system import resolve
from harness.results.measures.costs import cost_per_million_tokens, joules_per_token, price_per_gpu_hour
from harness.results.measures.slo import limits_ms
from harness.results.summary import number, percent
from harness.studies.capacity.keys import searched_key, unit_of
from harness.studies.capacity.load_search import Capacity
from harness.studies.capacity.probe import Probe

Row = dict[str, Any]
SMALLEST_ROOM = 1e-4


def room_of(config: RunConfig) -> float:
    """Share of requests that the percentile of the SLO leaves beyond a limit; one in 10,000 where it leaves none."""
    return max(1 - config.metrics.slo.percentile / 100, SMALLEST_ROOM)


def row_of(config: RunConfig, found: Capacity, label: str, overrides: Mapping[str, str]) -> Row:
    """The row of a configuration. Without an estimate, `low` is the highest load that holds and `high` the lowest that
    does not, each None where there is none."""
    room = room_of(config)
    held = [probe.load for probe in found.probes if probe.holds(room)]
    failed = [probe.load for probe in found.probes if not probe.holds(room)]
    row: Row = {"label": label, "overrides": dict(overrides), "cost_source": cost_source(config), "capacity": None}
    if found.estimate is None:
        row |= {"low": max(held, default=None), "high": min(failed, default=None)}
    else:
        row |= _whole(config, found.estimate.value, found.estimate.low, found.estimate.high)
    row |= _what_it_brings(config, found.probes, row["capacity"])
    row["servers"] = servers_text(config) if config.num_servers > 1 else None
    row["model_error"] = model_error(config)
    row |= {
        "price_per_gpu_hour": price_per_gpu_hour(config),
        "precision": found.estimate.precision if found.estimate else None,
        "num_probes": len(found.probes),
        "probes": [stored(probe, room) for probe in found.probes],
    }
    return row


def servers_text(config: RunConfig) -> str:
    """Such as `8 servers of 2 NVIDIA H100 behind prefix_affinity`."""
    pools = [
        f"{own.num_servers} server{'s' if own.num_servers > 1 else ''} of {own.num_gpus // own.num_servers} "
        f"{own.device.name}{'' if role == 'serve' else f' for {role}'}"
        for role, own in pools_of(config)
    ]
    return " and ".join(pools) + (f" behind {config.router.rule}" if config.num_servers > 1 else "")


def cost_source(config: RunConfig) -> str | None:
    """Where step times come from, in one line; None of a real engine."""
    return resolve(config).step_times_from() if isinstance(config.engine, SimEngine) else None


def model_error(config: RunConfig) -> Row | None:
    """The known error of throughput of simulations like this one, in percent; None of a real engine, of fitted
    constants, and where no class of public runs is near."""
    if not isinstance(config.engine, SimEngine):
        return None
    known = known_error_of(resolve(config), load_of(config.arrival.kind))
    spread = known and known.errors.get("throughput")
    return {**spread._asdict(), "runs": known.runs, "words": known.words} if known and spread else None


def widened_text(row: Row) -> str:
    """The interval with what the model's own error adds, which 80 % of the public runs are within; "" where it is not
    known."""
    error = row.get("model_error")
    if error is None or row["capacity"] is None:
        return ""
    low, high = row["low"] / (1 + error["high"] / 100), row["high"] / (1 + error["low"] / 100)
    return (
        f" With the model's own error it is {number(low)} to {number(high)}: throughput was off by "
        f"{error['low']:+.0f} to {error['high']:+.0f} % in 80 % of {error['runs']} public runs {error['words']}."
    )


def order_text(row: Row, second: Row) -> str:
    """A sentence where the best and the second are nearer to each other than the model is to measured runs."""
    errors = [each["model_error"]["median"] for each in (row, second) if each.get("model_error")]
    if not errors or abs(row["per_gpu"] / second["per_gpu"] - 1) >= max(errors) / 100:
        return ""
    return (
        f" Their order is within the model's own error, {max(errors):.0f} % of throughput at the median of such runs: "
        "measure both."
    )


def _whole(config: RunConfig, value: float, low: float, high: float) -> Row:
    """In whole numbers, where the key has them: the capacity is the highest that holds."""
    if searched_key(config) == "arrival.concurrency":
        return {"capacity": int(value), "low": int(low), "high": -int(-high // 1)}
    return {"capacity": value, "low": low, "high": high}


def _what_it_brings(config: RunConfig, probes: Sequence[Probe], capacity: float | None) -> Row:
    """Throughput, cost and energy at the capacity, from the probe nearest to it."""
    names = ("per_gpu", "cost_per_million_tokens", "joules_per_token", "interactivity", "output_throughput")
    num_gpus = probes[0].num_gpus
    if capacity is None:
        return {"num_gpus": num_gpus, **dict.fromkeys(names)}
    longest = max(probe.num_requests for probe in probes)
    nearest = min((each for each in probes if each.num_requests == longest), key=lambda each: abs(each.load - capacity))
    throughput = nearest.output_throughput
    if searched_key(config) == "arrival.rate":
        num_requests = sum(probe.num_requests for probe in probes)
        throughput = capacity * sum(probe.tokens_per_request * probe.num_requests for probe in probes) / num_requests
    return {
        "num_gpus": num_gpus,
        "per_gpu": capacity / num_gpus,
        **prices(config, nearest, throughput),
    }


def prices(config: RunConfig, probe: Probe, throughput: float) -> Row:
    """What so many output tokens/s cost, and what users get, on the servers of a probe."""
    return {
        "cost_per_million_tokens": cost_per_million_tokens(config, throughput),
        "joules_per_token": joules_per_token(config, throughput, probe.busy),
        "interactivity": 1e3 / probe.median_tpot_ms if probe.median_tpot_ms else None,
        "output_throughput": throughput,
    }


def stored(probe: Probe, room: float) -> Row:
    latencies = {f"{name}_ms": value for name, value in probe.latencies_ms.items()}
    row = {key: value for key, value in asdict(probe).items() if key not in ("load", "latencies_ms", "beyond", "guess")}
    return {"value": probe.load, "holds": probe.holds(room), **row, **latencies}


def slo_of(config: RunConfig) -> Row:
    """The limits in ms by latency, and the percentile."""
    return {**limits_ms(config.metrics.slo), "percentile": config.metrics.slo.percentile}


def slo_text(slo: Mapping[str, Any]) -> str:
    """Such as `p99 of TTFT within 500 ms and of TPOT within 40 ms`."""
    limits = [f"of {name.upper()} within {value:g} ms" for name, value in slo.items() if name != "percentile"]
    return f"p{slo['percentile']:g} {' and '.join(limits)}"


def range_text(row: Row) -> str:
    """The 95 % interval, or what is known in place of it."""
    if row["capacity"] is not None and row["low"] == row["high"]:
        return number(row["low"])
    if row["capacity"] is not None:
        return f"{number(row['low'])} to {number(row['high'])}"
    if row["low"] is None:
        return f"below {number(row['high'])}"
    return f"above {number(row['low'])}"


def row_sentence(row: Row, key: str, slo: Mapping[str, Any], settings: CapacityConfig) -> str:
    """What a single search found, and what to do where its interval is wider than asked for."""
    unit = unit_of(key)
    if row["capacity"] is None and row["low"] is None:
        return f"The SLO ({slo_text(slo)}) fails at every load tried, down to {number(row['high'])} {unit}."
    if row["capacity"] is None:
        return f"The SLO ({slo_text(slo)}) holds at every load tried, up to {number(row['low'])} {unit}."
    text = f"The SLO ({slo_text(slo)}) holds up to {number(row['capacity'])} {unit}"
    if row["servers"]:
        text = f"{row['servers']} hold {number(row['capacity'])} {unit} within the SLO ({slo_text(slo)})"
    text += f" (95 % interval {range_text(row)}; {row['num_probes']} probes)"
    text += f"{costs_text(row)}.{widened_text(row)}"
    if row["precision"] > settings.precision:
        more = f"capacity.max_probes={2 * settings.max_probes}"
        text += f" The interval is wider than the ±{100 * settings.precision:g} % asked for; {more} makes it narrower."
    return text


def gpus_text(row: Row) -> str:
    """Such as `2 GPUs, $7.98 an hour`."""
    cost = "" if row["cost_per_hour"] is None else f", ${number(row['cost_per_hour'])} an hour"
    return f"{row['num_gpus']} GPU{'' if row['num_gpus'] == 1 else 's'}{cost}"


def costs_text(row: Row) -> str:
    parts = []
    if row["cost_per_million_tokens"] is not None:
        parts.append(f"${number(row['cost_per_million_tokens'])} per million output tokens")
    if row["joules_per_token"] is not None:
        parts.append(f"{number(row['joules_per_token'])} J per output token (estimated)")
    return f": {', '.join(parts)}" if parts else ""


def confirmation_text(confirmed: Mapping[str, Any], key: str) -> str:
    """What the long runs at the lower end of the interval say, such as `In 4 runs of 50,000 requests each at 40
    requests/s with other seeds the SLO holds: TTFT 360 to 371 ms, TPOT 35.6 ms, 0.4% beyond a limit.`"""
    runs, at = confirmed["runs"], f"at {number(confirmed['value'])} {unit_of(key)}"
    if len(runs) == 1:
        what = f"a run of {runs[0]['num_requests']:,} requests {at} with another seed"
    else:
        what = f"{len(runs)} runs of {runs[0]['num_requests']:,} requests each {at} with other seeds"
    outcome = "holds" if confirmed["holds"] else "does NOT hold"
    latencies = "".join(
        f"{name.upper()} {' to '.join(dict.fromkeys(map(number, ends)))} ms, "
        for name, ends in confirmed["latencies_ms"].items()
    )
    return f"In {what} the SLO {outcome}: {latencies}{percent(confirmed['share'])} beyond a limit."
