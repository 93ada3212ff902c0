"""Fits the constants in simulator/importers/aiconfigurator/rules.py to public measurements.

    python -m experiments.inferencex.fit <silicon_sample.csv>

`SUSTAINED`, `step_us` and `eager_layer_us` are fitted on Llama-3.1-70B FP8 on H100 alone, by a grid: the mean squared
log error of TPOT, and a fifth of that of TTFT, which hangs on how a client starts. The two times of servers without
asynchronous scheduling are fitted on Qwen3-32B on two H100, by least squares and not below 0: what TPOT lacks, relative
to the measured TPOT, is synchronous_step_us + synchronous_sequence_us · clients. Its rows on 4 and 8 GPUs are left to
be scored.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from experiments import ROOT
from experiments.inferencex.simulation import CaseRows
from harness.measured.public_servers import SERVERS
from simulator.importers.aiconfigurator.rules import HOST, Host

_TTFT_WEIGHT = 0.2
_SUSTAINED = (1.0, 1.05, 1.1, 1.15, 1.2)
_STEP_US = (500.0, 700.0, 800.0, 900.0, 1000.0, 1100.0)
_EAGER_LAYER_US = (0.0, 500.0, 600.0, 700.0, 800.0)
_ROUNDS = 2


def fit(llama: CaseRows, qwen: CaseRows) -> tuple[float, Host]:
    """SUSTAINED and the four times, from these two cases."""
    host = HOST._replace(synchronous_step_us=0.0, synchronous_sequence_us=0.0)
    misfits = {value: misfit(llama.simulate(host, sustained=value)) for value in _SUSTAINED}
    sustained = min(misfits, key=misfits.__getitem__)
    print("sustained", {value: round(each, 5) for value, each in misfits.items()})
    for name, grid in (("eager_layer_us", _EAGER_LAYER_US), ("step_us", _STEP_US)):
        tried = {value: misfit(llama.simulate(host._replace(**{name: value}), sustained=sustained)) for value in grid}
        host = host._replace(**{name: min(tried, key=tried.__getitem__)})
        print(name, {value: round(each, 5) for value, each in tried.items()})
    on_two = [i for i, row in enumerate(qwen.each()) if row.tensor_parallel_size == 2]
    for _ in range(_ROUNDS):
        host = with_synchronous(host, qwen.simulate(host, on_two, sustained))
    return sustained, host


def misfit(table: pd.DataFrame) -> float:
    """Mean squared log error of TPOT, and a share of that of TTFT."""
    squares = {name: np.log(table[f"simulated_{name}_ms"] / table[f"{name}_ms"]) ** 2 for name in ("tpot", "ttft")}
    return float(squares["tpot"].mean() + _TTFT_WEIGHT * squares["ttft"].mean())


def with_synchronous(host: Host, table: pd.DataFrame) -> Host:
    """`host` with what the TPOT of these rows takes beyond kernels, for each step and each client, neither below 0."""
    measured, clients = table["tpot_ms"].to_numpy(), table["concurrency"].to_numpy()
    host_us = host.synchronous_step_us + host.synchronous_sequence_us * clients
    lacking = 1e3 * (measured - table["simulated_tpot_ms"].to_numpy()) + host_us
    parts = np.stack([np.ones(len(table)), clients], axis=1)
    (step, sequence), _ = nnls(parts / measured[:, None], lacking / measured)
    return host._replace(synchronous_step_us=float(step), synchronous_sequence_us=float(sequence))


if __name__ == "__main__":
    os.chdir(ROOT)
    fitted_on = SERVERS[0], next(server for server in SERVERS if server.name == "Qwen3-32B")
    print(fit(*(CaseRows(server, Path(sys.argv[1])) for server in fitted_on)))
