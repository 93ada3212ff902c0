"""Request-level batches, padded and not, against continuous batching."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from experiments.claims.claim import Claim, Data, Verdict
from experiments.claims.drawing import WAYS, bars, pictured
from experiments.claims.lab import BACKLOG, TINY_TRAFFIC, Lab
from harness.config.schema.tasks.plotting import PlotConfig

_OUTPUTS = (5, 50, 10, 100)
_SEATS = (16, 64, 256)
_WAYS = {
    "static, padded": ("scheduler=static",),
    "static": ("scheduler=static", "scheduler.options.padded=false"),
    "continuous": ("scheduler=mixed",),
}


def measure(lab: Lab) -> Data:
    data: Data = {"four": {}, "sharegpt": [], "tiny": []}
    trace = ["trace=csv", f"trace.path={_four_requests(lab.scratch)}", "arrival=all_at_once", "max_num_seqs=4"]
    for way, run in (("simulated", lab.predict), ("measured", lab.serve)):
        steps = run(*trace, "scheduler=static").steps
        tokens = int(steps["num_decode_seqs"].sum() + steps["num_prefill_seqs"].sum())
        padding = int(steps["num_padding_tokens"].sum())
        data["four"][way] = {"tokens": tokens, "steps": len(steps), "utilisation": tokens / (tokens + padding)}
    for policy, settings in _WAYS.items():
        for seats in _SEATS:
            outcome = lab.simulate(*BACKLOG, "trace.num_requests=3000", *settings, f"max_num_seqs={seats}")
            data["sharegpt"].append(
                {"policy": policy, "seats": seats, "tokens_per_s": outcome.summary["output_throughput"],
                 "batch": outcome.summary["mean_decode_batch_size"]}
            )  # fmt: skip
        for way, run in (("simulated", lab.predict), ("measured", lab.serve)):
            outcome = run(*TINY_TRAFFIC, "trace.num_requests=128", "arrival=all_at_once", *settings)
            data["tiny"].append({"policy": policy, "way": way, "tokens_per_s": outcome.summary["output_throughput"]})
    return data


def _four_requests(folder: Path) -> Path:
    """Requests of 10 tokens with the output lengths of the claim."""
    path = folder / "four.csv"
    pd.DataFrame({"arrival_time": 0.0, "num_prompt_tokens": 10, "num_output_tokens": _OUTPUTS}).to_csv(
        path, index=False
    )
    return path


def judge(data: Data) -> Verdict:
    padded, shrinking = (
        ", ".join(f"{_gain(data['sharegpt'], policy, seats=seats):.1f} with {seats}" for seats in _SEATS)
        for policy in ("static, padded", "static")
    )
    tiny = {
        (policy, way): _gain(data["tiny"], policy, way=way)
        for policy in ("static, padded", "static")
        for way in ("simulated", "measured")
    }
    four = data["four"]["measured"]
    return Verdict(
        "yes",
        f"The four requests fill {four['utilisation']:.2%} of the slots, in simulation and in the real engine alike "
        f"({four['tokens']} tokens in {four['steps']} steps of 4 slots). On a backlog of ShareGPT lengths continuous "
        f"batching brings {padded} seats times the tokens/s of padded batches, and {shrinking} times those of batches "
        f"that drop what has ended. Tiny: {tiny['static, padded', 'measured']:.1f} times measured and "
        f"{tiny['static, padded', 'simulated']:.1f} simulated against padded batches, "
        f"{tiny['static', 'measured']:.1f} and {tiny['static', 'simulated']:.1f} against the others.",
        "With equal output lengths, or with one seat, there is nothing to gain. Where batches drop what has ended, "
        "large ones lose little; where they are padded, they lose most: all rows are computed to the longest output.",
    )


def _gain(rows: list[Data], policy: str, **where: object) -> float:
    speeds = {r["policy"]: r["tokens_per_s"] for r in rows if all(r[key] == value for key, value in where.items())}
    return float(speeds["continuous"] / speeds[policy])


def draw(data: Data, plot: PlotConfig) -> Figure:
    speeds = {policy: [row["tokens_per_s"] for row in data["sharegpt"] if row["policy"] == policy] for policy in _WAYS}
    tiny = {policy: [row["tokens_per_s"] for row in data["tiny"] if row["policy"] == policy] for policy in _WAYS}
    used = (
        f"four requests of {', '.join(map(str, _OUTPUTS))} tokens:\n"
        f"{data['four']['measured']['utilisation']:.0%} of slots used"
    )
    panels = [
        ("H100", "SIMULATED\nShareGPT lengths", bars(speeds, [f"{n} seats" for n in _SEATS], "output tokens/s")),
        ("Tiny model, CPU", used, bars(tiny, list(WAYS.values()), legend_columns=None)),
    ]
    subtitle = "All requests at once, Qwen3-8B on H100, SIMULATED; and a tiny model on a CPU, SIMULATED and MEASURED"
    return pictured(plot, "Static and continuous batching", subtitle, panels, 3)


CLAIM = Claim(
    "Static batching leaves slots idle",
    "A batch that runs to its longest request wastes the slots of those that ended: with output lengths 5, 50, 10 and "
    "100 only 41 % of the slots do work. Continuous batching refills them, for several times the throughput.",
    "Yu et al., Orca, OSDI 2022; Daniel et al., How continuous batching enables 23x throughput, Anyscale 2023",
    measure,
    judge,
    draw,
)
