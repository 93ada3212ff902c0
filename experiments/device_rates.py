"""Shares of the datasheet's rates that kernels reach, for conf/device, from NVIDIA's operator times.

    python -m experiments.device_rates [--root <folder of aiconfigurator_core>]

memory_efficiency: median rate at which GEMMs of one token read their weights, n and k of at least 8,192, in 16 bits.
flops_efficiency: median rate of GEMMs of at least 2,048 tokens, n and k from 4,096 to 16,384, in 16 bits.
Both as shares of the rates in conf/device. Writes experiments/results/device_rates.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from experiments import RESULTS, composed, provenance, write_result
from experiments.default_profiles import DEVICES
from simulator.importers.aiconfigurator.database import Database, find_root


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="folder of aiconfigurator_core, if it is not installed")
    root = find_root(parser.parse_args().root)
    rates = {}
    for name in DEVICES:
        device = composed(f"device={name}").device
        assert device.aiconfigurator_system is not None
        database = Database(root, device.aiconfigurator_system)
        gemms = database.rows("gemm", "gemm_perf", gemm_dtype="bfloat16")
        m, n, k, seconds = gemms["m"], gemms["n"], gemms["k"], gemms["time_us"] * 1e-6
        of_weights = (m == 1) & (n >= 8192) & (k >= 8192)
        large = (m >= 2048) & n.between(4096, 16384) & k.between(4096, 16384)
        bandwidth = (2.0 * n * k / seconds)[of_weights].median()
        flops = (2.0 * m * n * k / seconds)[large].median()
        rates[name] = {
            "database": f"{database.system}/{database.backend}/{database.version}",
            "bytes_per_s": bandwidth,
            "flops_per_s": flops,
            "memory_efficiency": round(bandwidth / device.memory_bandwidth, 2),
            "flops_efficiency": round(flops / device.flops["bf16"], 2),
        }
        print(name, json.dumps(rates[name]))
    document = {**provenance("experiments.device_rates"), "rates": rates}
    write_result(RESULTS / "device_rates.json", document)


if __name__ == "__main__":
    main()
