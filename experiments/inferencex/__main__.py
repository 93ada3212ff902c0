"""How far off are simulations that NVIDIA's operator times price, on public measurements of vLLM?

    python -m experiments.inferencex --data <silicon_sample.csv>          all cases, 3 minutes
    python -m experiments.inferencex --data <silicon_sample.csv> --fit    fits the constants

silicon_sample.csv lies in the package aiconfigurator-core, in systems/.

Each row is simulated as a closed loop by `task=validate validation.measured=inferencex:`, with the profiles that come
with the project and the settings of each server in harness/measured/public_servers.py. Beside our errors stand those of
aiconfigurator itself, from experiments/results/inferencex_peer.csv, which peer.py makes. Writes
experiments/results/inferencex.json and docs/fidelity/inferencex/rows.png.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import pandas as pd

from experiments import FIDELITY, RESULTS, ROOT, provenance, write_result
from experiments.inferencex.fit import fit
from experiments.inferencex.scores import scores
from experiments.inferencex.simulation import CaseRows
from harness.config.schema.tasks.plotting import AS_USUAL
from harness.figures import write_charts
from harness.figures.charts.closed_loops import rows_chart
from harness.measured.public_servers import SERVERS, PublicServer
from harness.validation.contradictions import contradicted
from simulator.importers.aiconfigurator.rules import HOST, SUSTAINED

_PEER = RESULTS / "inferencex_peer.csv"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--systems", nargs="+", help="names of conf/device; default all")
    parser.add_argument("--fit", action="store_true")
    args = parser.parse_args()
    os.chdir(ROOT)
    if args.fit:
        llama, qwen = SERVERS[0], next(case for case in SERVERS if case.name == "Qwen3-32B")
        print(fit(*(CaseRows(case, args.data) for case in (llama, qwen))))
        return
    start = time.perf_counter()
    cases = [case for case in SERVERS if not args.systems or case.device in args.systems]
    parts, left_out = [], {}
    for case in cases:
        rows = CaseRows(case, args.data)
        parts.append(_scored(case, rows))
        left_out[case.key] = rows.rows.left_out
        print(f"{case.key}: {len(parts[-1])} rows", flush=True)
    table = _beside_peer(pd.concat(parts, ignore_index=True))
    document = {
        **provenance("experiments.inferencex"),
        "host_us": HOST._asdict(),
        "sustained": SUSTAINED,
        "seconds": round(time.perf_counter() - start),
        "cases": [{**case._asdict(), "left_out": left_out[case.key]} for case in cases],
        **scores(table),
        "rows": json.loads(table.to_json(orient="records", double_precision=4)),
    }
    write_result(RESULTS / "inferencex.json", document)
    _print(document)
    sound = table[table["excluded"] == ""]
    folder = FIDELITY / "inferencex"
    folder.mkdir(parents=True, exist_ok=True)
    subtitle = "MEASURED: silicon_sample.csv, vLLM · SIMULATED: operator times of aiconfigurator-core"
    write_charts({"rows": rows_chart(sound, subtitle, by="case", title="model, GPU")}, folder, AS_USUAL)


def _scored(case: PublicServer, rows: CaseRows) -> pd.DataFrame:
    """The simulated rows of a case, with the reason why a row cannot be right."""
    table = rows.simulate()
    reasons = contradicted(table)
    table["excluded"] = [case.excluded or reason for reason in reasons]
    return table.assign(case=case.key)


def _beside_peer(table: pd.DataFrame) -> pd.DataFrame:
    """`table` with the estimates of aiconfigurator, empty where it has none."""
    if not _PEER.is_file():
        return table.assign(peer_ttft_ms=None, peer_tpot_ms=None)
    peer = pd.read_csv(_PEER).drop_duplicates("id").set_index("id")
    for name in ("ttft", "tpot"):
        table[f"peer_{name}_ms"] = table["id"].map(peer[f"{name}_ms"])
        table[f"peer_{name}_error_pct"] = 100 * (table[f"peer_{name}_ms"] / table[f"{name}_ms"] - 1)
    return table


def _print(document: dict[str, Any]) -> None:
    columns = ("rows", "tpot", "tpot_p90", "peer_tpot", "peer_tpot_p90", "ttft", "peer_ttft")
    print(pd.DataFrame(document["by_case"]).T.reindex(columns=columns).round(1).to_string())
    print("all", {name: round(value, 1) for name, value in document["all"].items()})
    for reason, ids in document["excluded"].items():
        print(f"! {len(ids)} rows cannot be right: {reason}")


if __name__ == "__main__":
    main()
