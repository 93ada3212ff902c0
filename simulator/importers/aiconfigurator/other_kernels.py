"""Kernels of some models that the database has no tables for.

    router           in float32: the hidden state is cast, and the product takes as much longer than in 16 bits as on an
                     H100 (`experiments/results/float32_router.csv`: 256 by 3,072, torch 2.11, in a CUDA graph), in
                     proportion to its weights, and longer where the device's rate of float32 is lower. Other sizes
                     measured there are within a half of that up to 128 tokens, and within a third beyond. A server
                     may be told to round its inputs to TF32 (VLLM_FLOAT32_MATMUL_PRECISION=high)
    experts          Triton's, as the database timed them in 0.19, are chosen by a kernel beside them.
                     MiniMax-M2 on data-centre Blackwell: the experts' kernel, as the database timed it, also chooses
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

from simulator.device import Device
from simulator.importers.aiconfigurator.communication import all_reduce
from simulator.importers.aiconfigurator.database import Database
from simulator.importers.aiconfigurator.measured_curve import Floats, MeasuredCurve, measured_curve
from simulator.importers.aiconfigurator.rules import memory_rule
from simulator.models.block import Weights
from simulator.models.experts import Experts
from simulator.models.model import Model

_SCALED_BYTES = 3  # read in 16 bits, written in 8
_CAST_BYTES = 6  # read in 16 bits, written in 32
_EXCHANGED_BYTES = 8
_PACKING_KERNELS = 3
_SCALE_BLOCK = 128
# Tokens, and by how much longer than in 16 bits the product of 256 experts by 3,072 took on an H100, in us.
_ROUTED = (1.0, 2.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
_BEYOND_FLOAT32 = (0.0, 3.79, 7.97, 8.11, 5.61, 6.43, 9.02, 13.69, 23.15, 37.35, 69.02, 123.32, 238.88, 464.16)
_BEYOND_TF32 = (0.0, 1.0, 1.29, 1.1, 1.03, 1.03, 1.4, 2.52, 4.62, 4.42, 10.43, 16.27, 23.52, 42.78)
_ROUTER_WEIGHTS, _FLOAT32_OF_H100 = 256 * 3072, 67e12
_MONOLITHIC = range(100, 110)  # compute capabilities, times 10, on which the timed kernel chooses the experts


def float32_router(
    database: Database, product: MeasuredCurve, weights: Weights, device: Device, *, rounds: bool = False
) -> MeasuredCurve:
    """The product of a router in float32 over tokens, from that in 16 bits; `rounds`: with inputs in TF32."""
    slower = max(1.0, _FLOAT32_OF_H100 / device.flops.get("fp32", device.flops["bf16"]))
    sizes = np.union1d(product.sizes, _ROUTED)
    beyond = MeasuredCurve(np.array(_ROUTED), np.array(_BEYOND_TF32 if rounds else _BEYOND_FLOAT32)).at(sizes)
    beyond *= (1.0 if rounds else slower) * weights.rows * weights.columns / _ROUTER_WEIGHTS
    return MeasuredCurve(
        sizes, product.at(sizes) + beyond + _moving_us(database, _CAST_BYTES * weights.columns * sizes)
    )


def routing_us(database: Database, model: Model, sizes: Floats) -> Floats | float:
    """Time of kernels beside those of the experts that choose them, where their own, as it was timed, does."""
    block = model.first(Experts)
    if block is None or not block.routes_ungrouped or int(database.rates["sm_version"]) not in _MONOLITHIC:
        return 0.0
    moved = [8 * block.num_used] * _PACKING_KERNELS  # bytes of a token, by kernel
    if model.format_of("experts").name == "fp8_block":
        moved += [8 * model.hidden_size // _SCALE_BLOCK, 2 * model.dtype_bytes * model.hidden_size]
    beside: Floats = np.sum([_moving_us(database, num_bytes * sizes) for num_bytes in moved], axis=0)
    return choosing_us(database, block, sizes) + beside


def choosing_us(database: Database, block: Experts, sizes: Floats) -> Floats:
    """Time of the kernel that chooses experts by the scores of the router."""
    return _moving_us(database, 4 * block.num_experts * sizes)


def norm_exchange(database: Database, ranks: int, sizes: Floats) -> MeasuredCurve:
    """The all-reduce of the sums of squares of queries and keys; raises ProfileError if none was measured."""
    return MeasuredCurve(sizes, all_reduce(database, ranks, 0.0)[0].at(_EXCHANGED_BYTES * sizes))


def _moving_us(database: Database, num_bytes: Floats) -> Floats:
    rows = database.rows("quantize", "scale_matrix_perf", quant_dtype="fp8")
    if rows.empty:
        rule = memory_rule(database.rates)
        return rule.fixed_us + num_bytes * rule.us_per_byte
    return measured_curve(rows.assign(num_bytes=_SCALED_BYTES * rows["m"] * rows["k"]), "num_bytes")[0].at(num_bytes)
