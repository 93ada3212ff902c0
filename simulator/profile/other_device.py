"""Profiles of a device that nobody profiled, from measured kernels of one that is alike.

A kernel takes the longer of its bytes and its operations, as in `simulator.costs.roofline`, on either device; and it is
taken to reach the same share of the rates of both:

    time on target = launch + (time on source - launch) · roofline on target / roofline on source

Rates are those of the datasheets times the efficiencies of the devices, so that products that are large, and reads of
weights that are, take what was measured of the target. A launch takes as long everywhere: `LAUNCH_US`, the constant
time of small kernels in NVIDIA's database. Exchanges between ranks scale by the bandwidth of the links alone, and what
the host takes does not scale. How far off such times are: `experiments/results/like_gpus.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.device import Device
from simulator.models.block import Weights, num_hit
from simulator.models.latent import Latent
from simulator.models.model import Model
from simulator.models.weight_formats import NONE
from simulator.profile.profile import Profile
from simulator.table import Table

LAUNCH_US = 3.0
_EXCHANGES = ("qk_all_reduce", "logits_all_gather")
_US = 1e6

Floats = NDArray[np.float64]


class _Rates(NamedTuple):
    """What a device reaches, per us."""

    device: Device
    num_bytes: float

    def time_us(self, model: Model, part: str, num_bytes: Floats, operations: Floats) -> Floats:
        """Roofline of a kernel that multiplies by weights of `part`, or of attention for "attention_scores"."""
        stored = NONE if part == "attention_scores" else model.format_of(part)
        flops = stored.products(model.dtype, self.device.flops, self.device.name).flops
        return np.maximum(num_bytes / self.num_bytes, operations * _US / (flops * self.device.flops_efficiency))


def _rates(device: Device) -> _Rates:
    return _Rates(device, device.memory_bandwidth * device.memory_efficiency / _US)


@lru_cache(maxsize=16)  # the same object for the same arguments, as cost models keep what they make of it
def on_device(profile: Profile, model: Model, ranks: int, source: Device, target: Device) -> Profile | None:
    """`profile`, measured on `source`, as of `target`; None where kernels of another arithmetic run on the target."""
    formats = {model.format_of(weights.part).arithmetic for _, weights in model.matrices(ranks)}
    if any(each in source.flops and each not in target.flops for each in formats):
        return None
    devices = _rates(source), _rates(target)
    scaled = {name: _scaled(name, table, model, ranks, devices) for name, table in profile.rows.items()}
    made_of = {**profile.meta.source, "scaled_from": source.name}
    return Profile(replace(profile.meta, device=target.name, source=made_of), scaled)


def _scaled(name: str, table: Table, model: Model, ranks: int, devices: tuple[_Rates, _Rates]) -> Table:
    if name in ("uneven", "steps"):
        return table
    source, target = devices
    reading = np.full(len(table), source.num_bytes / target.num_bytes)
    linking = np.full(len(table), source.device.link_bandwidth / target.device.link_bandwidth)
    ratio = reading
    if name in ("all_reduce", "exchange"):
        ratio = linking
    elif name in ("attention", "deviations"):
        ratio = _attention_us(table, model, ranks, target) / _attention_us(table, model, ranks, source)
    elif name in ("tokens", "sequences", "experts"):
        matrices = _matrices(model, ranks)
        ratio = np.empty(len(table))
        operators = table["operator"].to_numpy() if "operator" in table else np.full(len(table), "experts")
        for operator in np.unique(operators):
            rows = operators == operator
            if weights := matrices.get(str(operator)):
                sizes = table["num_sequences" if name == "sequences" else "num_tokens"].to_numpy(np.float64)[rows]
                ratio[rows] = _products_us(sizes, weights, model, target) / _products_us(sizes, weights, model, source)
            else:
                ratio[rows] = (linking if operator in _EXCHANGES else reading)[rows]
    times = table["time_us"].to_numpy(np.float64)
    launch = np.minimum(times, LAUNCH_US)
    return table.assign(time_us=launch + (times - launch) * ratio)


def _matrices(model: Model, ranks: int) -> dict[str, list[Weights]]:
    """The matrices that each operator multiplies by, those of other layers by name and size too."""
    found: dict[str, list[Weights]] = {}
    for _, weights in model.matrices(ranks):
        for name in (weights.name, f"{weights.name}_{weights.rows}x{weights.columns}"):
            of_name = found.setdefault(name, [])
            if weights not in of_name and (weights.part == "experts" or not of_name):
                of_name.append(weights)
    found["lm_head"] = [Weights("lm_head", "lm_head", model.vocab_size // ranks, model.hidden_size)]
    return found


def _products_us(num_tokens: Floats, matrices: list[Weights], model: Model, rates: _Rates) -> Floats:
    """Products of `num_tokens` tokens; of experts, by those that are hit in expectation."""
    total = np.zeros_like(num_tokens)
    for each in matrices:
        hit = num_hit(each.copies, each.used, num_tokens)
        stored = model.format_of(each.part).matrix_bytes(each.rows, each.columns, model.dtype_bytes)
        moved = each.used * num_tokens * (each.rows + each.columns) * model.dtype_bytes
        operations = 2.0 * each.rows * each.columns * each.used * num_tokens
        total += rates.time_us(model, each.part, hit * stored + moved, operations)
    return total


def _attention_us(table: Table, model: Model, ranks: int, rates: _Rates) -> Floats:
    """Attention of all layers, with the products that times of latent attention hold, and states."""
    columns: Mapping[str, Any] = {name: table[name].to_numpy(np.float64) for name in table.columns if name != "time_us"}
    decodes, context = columns["num_decodes"], columns["decode_context"]
    chunk = columns.get("prefill_tokens", np.zeros_like(decodes))
    start = columns.get("prefill_context", np.zeros_like(decodes))
    total = np.zeros_like(decodes)
    for count, block in model.blocks:
        if not block.is_attention:
            continue
        for token_bytes, operations, window, in_prompts in block.scans(model, ranks):
            seen = np.minimum(context, window or np.inf)
            whole = np.minimum(start + chunk, (window or np.inf) + chunk)
            pairs = chunk * np.minimum(start + (chunk + 1) / 2, window or np.inf)
            multiplied = decodes * seen * operations + pairs * (operations if in_prompts is None else in_prompts)
            read = token_bytes * (decodes * seen + whole)
            total += count * rates.time_us(model, "attention_scores", read, multiplied)
        states = 2.0 * block.state_bytes(model, ranks) * (decodes + (chunk > 0))
        worked = block.state_operations(ranks) * (decodes + chunk)
        total += count * rates.time_us(model, "attention_scores", states, worked)
        if isinstance(block, Latent):
            for weights in block.matrices(model, ranks):
                total += count * _products_us(decodes + chunk, [weights], model, rates)
    return total
