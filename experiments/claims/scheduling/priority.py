"""Urgent requests beside ordinary ones."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.claims.claim import Claim, Data, Verdict
from experiments.claims.lab import TINY_TRAFFIC, Lab, Outcome
from harness.config.schema.tasks.plotting import PlotConfig
from harness.figures.style import COLORS, fitting, head, log_axis

_POLICIES = ("mixed", "priority")
_RATES = (8, 12, 16, 20)
_CLASSES = "trace.priority_shares=[0.1,0.9]"


def measure(lab: Lab) -> Data:
    data: Data = {"h100": [], "tiny": []}
    lengths = ("trace=synthetic", "trace.prompt.mean=600", "trace.prompt.std=600", "trace.output.mean=300", _CLASSES)
    for policy in _POLICIES:
        queue = ["scheduler.queue=fcfs"] if policy == "mixed" else []
        for rate in _RATES:
            load = (f"arrival.rate={rate}", "trace.num_requests=3000", "max_num_seqs=128")
            outcome = lab.simulate(*lengths, *load, f"scheduler={policy}", *queue)
            data["h100"].append({"policy": policy, "rate": rate, **_by_class(outcome)})
        crowd = ("arrival.rate=25", "trace.num_requests=120", "max_num_seqs=8", "max_num_batched_tokens=512")
        for way, run in (("simulated", lab.predict), ("measured", lab.serve)):
            outcome = run(*TINY_TRAFFIC, _CLASSES, *crowd, f"scheduler={policy}", *queue)
            data["tiny"].append({"policy": policy, "way": way, **_by_class(outcome)})
    return data


def _by_class(outcome: Outcome) -> dict[str, float]:
    requests = outcome.requests
    ttft = {name: requests.loc[requests["priority"] == value, "ttft"] for name, value in (("urgent", 0), ("others", 1))}
    return {
        **{f"{name}_p99_ms": float(1e3 * values.quantile(0.99)) for name, values in ttft.items()},
        "tokens_per_s": float(outcome.summary["output_throughput"]),
    }


def judge(data: Data) -> Verdict:
    top = {row["policy"]: row for row in data["h100"] if row["rate"] == _RATES[-1]}
    tiny = {(row["way"], row["policy"]): row for row in data["tiny"]}
    return Verdict(
        "yes",
        f"A tenth of the requests is urgent, {_RATES[-1]} requests/s, simulated: their p99 TTFT falls from "
        f"{top['mixed']['urgent_p99_ms']:,.0f} to {top['priority']['urgent_p99_ms']:,.0f} ms, that of the others goes "
        f"from {top['mixed']['others_p99_ms']:,.0f} to {top['priority']['others_p99_ms']:,.0f} ms, the throughput "
        f"from {top['mixed']['tokens_per_s']:,.0f} to {top['priority']['tokens_per_s']:,.0f} tokens/s. Tiny: urgent "
        f"{tiny['measured', 'mixed']['urgent_p99_ms']:,.0f} to {tiny['measured', 'priority']['urgent_p99_ms']:,.0f} "
        f"ms measured, {tiny['simulated', 'mixed']['urgent_p99_ms']:,.0f} to "
        f"{tiny['simulated', 'priority']['urgent_p99_ms']:,.0f} simulated.",
        "Below saturation nobody waits and the classes are alike. With many urgent requests they wait for one another; "
        "what they displace is computed again.",
    )


def draw(data: Data, plot: PlotConfig) -> Figure:
    figure, panels = fitting(
        "Priority classes",
        "p99 TTFT of urgent requests (a tenth) and of the others, first come first served and by priority",
        2,
        plot,
        3.2,
    )
    rates = sorted({row["rate"] for row in data["h100"]})
    for color, name in zip(COLORS, ("urgent", "others"), strict=False):
        for policy, style in (("mixed", ":"), ("priority", "-")):
            values = [row[f"{name}_p99_ms"] for row in data["h100"] if row["policy"] == policy]
            label = f"{name}, {'by priority' if policy == 'priority' else 'first come first served'}"
            panels[0].plot(rates, values, "o" + style, color=color, markerfacecolor="white", label=label)
    low, high = panels[0].dataLim.intervaly
    log_axis(panels[0], "y", low / 1.5, high * 1.5, num_ticks=5)
    panels[0].set_xlabel("requests/s")
    panels[0].set_ylabel("p99 TTFT, ms")
    panels[0].legend(fontsize=7.5)
    head(panels[0], "H100", "SIMULATED")
    for index, (policy, name) in enumerate((p, n) for p in _POLICIES for n in ("urgent", "others")):
        values = [row[f"{name}_p99_ms"] for row in data["tiny"] if row["policy"] == policy]
        color = COLORS[0] if name == "urgent" else COLORS[1]
        places = [0.2 * index, 1 + 0.2 * index]
        panels[1].bar(places, values, 0.19, color=color, alpha=0.45 if policy == "mixed" else 1.0)
    panels[1].set_xticks([0.3, 1.3], ["SIMULATED", "MEASURED"])
    head(panels[1], "Tiny model, CPU", "pale: first come first served")
    return figure


CLAIM = Claim(
    "Priorities protect urgent requests under load",
    "With admission and preemption by priority, urgent requests keep their latency where all others queue.",
    "vLLM, --scheduling-policy priority; Wu et al., FastServe, 2023, for preemption in favour of other requests",
    measure,
    judge,
    draw,
)
