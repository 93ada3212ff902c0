"""Do the well-known claims about LLM serving hold here, and where do they stop?

    python -m experiments.claims                  all claims, about 15 minutes on two cores; needs torch
    python -m experiments.claims batching gqa     some of them; the figures of the others are kept
    python -m experiments.claims --list           their names
    python -m experiments.claims --render         the table and the figures again, from the stored figures
    python -m experiments.claims --figures paper --width column --formats svg,pdf
                                                  the stored figures for a paper, in folder `paper`, and nothing else

Each claim is a file of the folders `memory` and `scheduling`. It is tried in simulation, of a GPU and of a tiny model,
and with that tiny model in the real engine on this machine's CPU. Writes experiments/results/claims.json,
docs/claims/<name>.png and experiments/claims/README.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from experiments import RESULTS, ROOT, write_result
from experiments.claims.claim import Claim
from experiments.claims.lab import Lab
from experiments.claims.page import FIGURES, PAGE, page
from harness.config.schema.tasks.plotting import AS_USUAL, PlotConfig
from harness.figures.style import write_figures
from harness.results.stored.environment import environment
from harness.results.stored.files import write_whole

ROOMS = {
    "waste": "memory", "batching": "scheduling", "prefix_caching": "memory", "sharing": "memory",
    "block_size": "memory", "preemption": "scheduling", "gqa": "memory", "kv_quantization": "memory",
    "priority": "scheduling", "chunk_size": "scheduling", "async_scheduling": "scheduling",
    "speculation": "scheduling", "offload": "memory",
}  # fmt: skip
NAMES = tuple(ROOMS)
STORE = RESULTS / "claims.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="claim")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--render", action="store_true")
    parser.add_argument("--figures", type=Path, metavar="FOLDER")
    parser.add_argument("--width", choices=["page", "column"], default="page")
    parser.add_argument("--formats", default="png")
    args = parser.parse_args()
    if unknown := sorted({*args.names} - {*NAMES}):
        parser.error(f"no claim {', '.join(unknown)}; there are {', '.join(NAMES)}")
    folder = args.figures and args.figures.absolute()
    os.chdir(ROOT)
    claims = {name: claim_of(name) for name in NAMES}
    if args.list:
        for name, claim in claims.items():
            print(f"{name:18} {claim.title}")
        return
    stored: dict[str, Any] = json.loads(STORE.read_text()) if STORE.exists() else {}
    if not (args.render or folder):
        for name in args.names or NAMES:
            print(name, end=" ", flush=True)
            stored[name] = measured(claims[name])
            print(f"{stored[name]['seconds']} s", flush=True)
            write_result(STORE, stored)
    known = {name: claim for name, claim in claims.items() if name in stored}
    if folder:
        plot = PlotConfig(width=args.width, formats=args.formats.split(","))
        names = args.names or NAMES
        write_figures(drawn({name: known[name] for name in names}, stored, plot), folder, plot)
        return
    write_figures(drawn(known, stored, AS_USUAL), FIGURES, AS_USUAL)
    text = page(known, stored)
    write_whole(PAGE, lambda path: path.write_text(text, encoding="utf-8"))


def claim_of(name: str) -> Claim:
    claim = import_module(f"experiments.claims.{ROOMS[name]}.{name}").CLAIM
    assert isinstance(claim, Claim)
    return claim


def drawn(claims: dict[str, Claim], stored: dict[str, Any], plot: PlotConfig) -> dict[str, Figure]:
    """The figures of what is stored."""
    return {name: claim.draw(stored[name]["data"], plot) for name, claim in claims.items()}


def measured(claim: Claim) -> dict[str, Any]:
    """What a claim measures, with when and on what machine."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        data = claim.measure(Lab(Path(scratch)))
    return {
        "date": datetime.date.today().isoformat(),
        "seconds": round(time.perf_counter() - start),
        "environment": environment(),
        "data": data,
    }


if __name__ == "__main__":
    main()
