"""Named numbers in cost models that may be fitted to a measured run, and those of `cost=profiled`."""

from __future__ import annotations

import math
from typing import NamedTuple

from simulator.hardware import Device

MIB = 1 << 20
ALL_REDUCE_MIB = (0, 1, 16)


class Constant(NamedTuple):
    """A number in a cost model that may be fitted.

    Attributes:
        default: its value unless fitted.
        low, high: the limits of a fit.
        width: how far from the default it may well be; a fit weighs a misfit against going farther.
    """

    default: float
    low: float
    high: float
    width: float = math.inf


def profiled_constants(
    device: Device, tensor_parallel_size: int, *, async_scheduling: bool = False
) -> dict[str, Constant]:
    """What stands for that which a profile of kernels cannot show.

    step_overhead_us      of every step: the host, well below a millisecond where asynchronous scheduling hides it
    prefill_layer_us      of every layer in a step with prompt tokens that no CUDA graph serves
    mixing_factor         of what a batch of prompt chunks and decodes takes beyond its parts
    all_reduce_<N>mib_us  one all-reduce of N MiB, linear in between; where several ranks have no all_reduce table.
                          Unless fitted, a ring over the device's link: latency + 2·(TP-1)/TP·bytes / bandwidth.
    """
    named = {
        "step_overhead_us": Constant(0.0, 0.0, 5e3, 500.0 if async_scheduling else 2e3),
        "prefill_layer_us": Constant(0.0, 0.0, 500.0, 200.0),
        "mixing_factor": Constant(1.0, 0.0, 2.0, 0.5),
    }
    if tensor_parallel_size > 1:
        share = 2 * (tensor_parallel_size - 1) / tensor_parallel_size
        for mib in ALL_REDUCE_MIB:
            time = 1e6 * (device.link_latency_s + share * mib * MIB / device.link_bandwidth)
            # how long large messages take, any run shows; few show the latency alone
            width = time / 2 if mib == 0 and time else math.inf
            named[all_reduce_name(mib)] = Constant(time, 0.0, 10 * time or 1e3, width)
    return named


def all_reduce_name(mib: int) -> str:
    return f"all_reduce_{mib}mib_us"
