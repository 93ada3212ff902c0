"""Kernels of some models that the database has no tables for.

    router           in float32: the hidden state is cast, and the product takes at least what it takes in 16 bits, and
                     at least its operations at the device's rate of float32
    experts          MiniMax-M2 on data-centre Blackwell: the experts' kernel, as the database timed it, also chooses
                     them. Until vLLM 0.22 it could not without groups (`_supports_routing_method` of its
                     experts/trtllm_fp8_moe.py and trtllm_nvfp4_moe.py): one kernel chooses, three pack what it chose,
                     and in block-scaled FP8 one transposes the scales of the input and one copies the output
    qk_all_reduce    norms of query and key over the heads of all ranks exchange two float32 sums per token. vLLM's own
                     all-reduce carries them (`forward_qk` of its linear_attn.py); that 0.24 fuses it with the norms, up
                     to 2,048 tokens, is not priced

A kernel that moves bytes takes what the database's scaling of inputs by a given factor does (`scale_matrix_perf`):
about 2 us; where that was not timed, what `rules` has for such kernels.
"""

from __future__ import annotations

import numpy as np

from simulator.importers.aiconfigurator.communication import all_reduce
from simulator.importers.aiconfigurator.database import Database
from simulator.importers.aiconfigurator.measured_curve import Floats, MeasuredCurve, measured_curve
from simulator.importers.aiconfigurator.rules import memory_rule
from simulator.models.block import Weights
from simulator.models.experts import Experts
from simulator.models.hardware import Device
from simulator.models.model import Model

_SCALED_BYTES = 3  # read in 16 bits, written in 8
_CAST_BYTES = 6  # read in 16 bits, written in 32
_EXCHANGED_BYTES = 8
_PACKING_KERNELS = 3
_SCALE_BLOCK = 128
_MONOLITHIC = range(100, 110)  # compute capabilities, times 10, on which the timed kernel chooses the experts


def float32_router(database: Database, product: MeasuredCurve, weights: Weights, device: Device) -> MeasuredCurve:
    """The product of a router in float32 over tokens, from that in 16 bits."""
    rate = device.flops.get("fp32", device.flops["bf16"]) * device.flops_efficiency
    operations = 2.0 * weights.rows * weights.columns * product.sizes
    times = np.maximum(product.times_us, 1e6 * operations / rate)
    return MeasuredCurve(product.sizes, times + _moving_us(database, _CAST_BYTES * weights.columns * product.sizes))


def with_routing(database: Database, model: Model, experts: MeasuredCurve) -> MeasuredCurve:
    """The time of experts that kernels beside theirs choose, where their own, as it was timed, does."""
    block = model.first(Experts)
    if block is None or not block.routes_ungrouped or int(database.rates["sm_version"]) not in _MONOLITHIC:
        return experts
    moved = [4 * block.num_experts, *[8 * block.num_used] * _PACKING_KERNELS]  # bytes of a token, by kernel
    if model.format_of("experts").name == "fp8_block":
        moved += [8 * model.hidden_size // _SCALE_BLOCK, 2 * model.dtype_bytes * model.hidden_size]
    beside = np.sum([_moving_us(database, num_bytes * experts.sizes) for num_bytes in moved], axis=0)
    return MeasuredCurve(experts.sizes, experts.times_us + beside)


def norm_exchange(database: Database, ranks: int, sizes: Floats) -> MeasuredCurve:
    """The all-reduce of the sums of squares of queries and keys; raises ProfileError if none was measured."""
    return MeasuredCurve(sizes, all_reduce(database, ranks, 0.0)[0].at(_EXCHANGED_BYTES * sizes))


def _moving_us(database: Database, num_bytes: Floats) -> Floats:
    rows = database.rows("quantize", "scale_matrix_perf", quant_dtype="fp8")
    if rows.empty:
        rule = memory_rule(database.rates)
        return rule.fixed_us + num_bytes * rule.us_per_byte
    return measured_curve(rows.assign(num_bytes=_SCALED_BYTES * rows["m"] * rows["k"]), "num_bytes")[0].at(num_bytes)
