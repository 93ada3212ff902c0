"""The table of claims: experiments/claims/README.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.claims.claim import Claim

FIGURES = Path("docs/claims")
PAGE = Path("experiments/claims/README.md")

_HEAD = """# Claims about LLM serving, tried

Each row is a claim of the literature, what we measured, and where it stops to hold. "Simulated" is Qwen3-8B on one
H100 unless the text says otherwise; "tiny" is a model of 3.7 million random weights in the real engine on a CPU, beside
its simulation. Latencies of a tiny model on a CPU say nothing about a GPU; what both share is the scheduler and
the block manager. A profile of the same kind of machine prices the tiny model, and its speed differs by
up to 2 between hours: compare ratios and counts, not times.

    python -m experiments.claims                  # remakes all of this page; needs torch
    python -m experiments.claims <name>           # one claim

| claim | holds | measured | where it stops |
|---|---|---|---|
"""


def page(claims: Mapping[str, Claim], stored: Mapping[str, Any]) -> str:
    """The page of `claims`, of which `stored` has the data by name."""
    rows, details = [], []
    for name, claim in claims.items():
        verdict = claim.judge(stored[name]["data"])
        rows.append(f"| [{claim.title}](#{name}) | {verdict.holds} | {verdict.measured} | {verdict.until} |\n")
        cpu = stored[name]["environment"]["cpu_model"]
        details.append(
            f"\n## {name}\n\n**Claim.** {claim.says}\n\n**Source.** {claim.source}\n\n"
            f"**Measured.** {verdict.measured}\n\n"
            f"**Holds: {verdict.holds}.** {verdict.until}\n\n![{claim.title}](../../{FIGURES}/{name}.png)\n\n"
            f"`python -m experiments.claims {name}`, {stored[name]['date']}, {cpu}, {stored[name]['seconds']} s.\n"
        )
    return _HEAD + "".join(rows) + "".join(details)
