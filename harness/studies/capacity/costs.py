"""What output tokens cost: GPU time at its price, and energy.

The price is the rent of a GPU per hour, `device.price_per_gpu_hour`. The energy is an estimate: nothing here measures
power. A GPU is taken to draw a tenth of its thermal design power while idle, all of it while a step runs, so

    power = num_gpus * tdp_w * (0.1 + 0.9 * busy)

with `busy` the share of time in which a step runs. Decode steps, which wait for memory, draw less than that, and the
host, the network and the cooling are not in it.
"""

from __future__ import annotations

from harness.config import DeviceConfig

_IDLE = 0.1  # of the thermal design power; 60 to 75 W of an H100's 700 W in nvidia-smi


def cost_per_million_tokens(device: DeviceConfig, num_gpus: int, tokens_per_s: float) -> float | None:
    """US dollars per million output tokens; None without a price or without tokens."""
    if device.price_per_gpu_hour is None or not tokens_per_s > 0:
        return None
    return num_gpus * device.price_per_gpu_hour / 3600 / tokens_per_s * 1e6


def joules_per_token(device: DeviceConfig, num_gpus: int, tokens_per_s: float, busy: float) -> float | None:
    """Estimated energy per output token in J; None where the device's power is not known, or without tokens."""
    if device.tdp_w is None or not tokens_per_s > 0:
        return None
    return num_gpus * device.tdp_w * (_IDLE + (1 - _IDLE) * busy) / tokens_per_s
