"""Constants of cost models that may be fitted to a measured run, and which of them `cost=profiled` has."""

from __future__ import annotations

import math
from typing import NamedTuple

from simulator.device import Device

MIB = 1 << 20
ALL_REDUCE_MIB = (0, 1, 16)


# task=calibrate fits all others by default.
ONLY_IF_NAMED = ("kernel_factor", "sequence_overhead_us", "front_end_ms", "front_end_token_us")


class Constant(NamedTuple):
    """A number in a cost model that may be fitted.

    Attributes:
        default: its value unless fitted.
        low, high: the limits of a fit.
        width: plausible distance from the default; a fit weighs a larger distance against the misfit that it saves.
    """

    default: float
    low: float
    high: float
    width: float = math.inf


def profiled_constants(
    device: Device, tensor_parallel_size: int, *, async_scheduling: bool = False
) -> dict[str, Constant]:
    """Constants for times that a profile of kernels does not hold.

    step_overhead_us      the host's time in every step, well below a millisecond where asynchronous scheduling hides it
    sequence_overhead_us  what each decode adds to that: what samples, detokenises, streams and, on the same machine,
                          reads a stream takes its time from the steps
    prefill_layer_us      added for every layer of a step with prompt tokens, unless a CUDA graph serves the step
    kernel_factor         multiplies all measured times, where the profile is of another device or another version
    mixing_factor         multiplies the attention time of a mixed batch beyond that of its chunks and its decodes alone
    all_reduce_<N>mib_us  one all-reduce of N MiB, linear in between; for several ranks whose profile has no all_reduce
                          table. Default: a ring over the device's link, latency + 2·(TP-1)/TP·bytes / bandwidth.
    """
    named = {
        "step_overhead_us": Constant(0.0, 0.0, 5e3, 500.0 if async_scheduling else 2e3),
        "sequence_overhead_us": Constant(0.0, 0.0, 2e3, 200.0),
        "prefill_layer_us": Constant(0.0, 0.0, 500.0, 200.0),
        "mixing_factor": Constant(1.0, 0.0, 2.0, 0.5),
        "kernel_factor": Constant(1.0, 0.1, 10.0, 1.0),
    }
    if tensor_parallel_size > 1:
        share = 2 * (tensor_parallel_size - 1) / tensor_parallel_size
        for mib in ALL_REDUCE_MIB:
            time = 1e6 * (device.link_latency_s + share * mib * MIB / device.link_bandwidth)
            # Any run shows how long large messages take; few runs show the latency alone.
            width = time / 2 if mib == 0 and time else math.inf
            named[all_reduce_name(mib)] = Constant(time, 0.0, 10 * time or 1e3, width)
    return named


def all_reduce_name(mib: int) -> str:
    return f"all_reduce_{mib}mib_us"
