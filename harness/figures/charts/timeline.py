"""One run over time: throughput, queues, KV cache, preemptions and prefix-cache hits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.config.schema.tasks.plotting import PlotConfig
from harness.figures.chart import Axis, Chart, Mark, Panel, Series
from harness.figures.subtitles import run_subtitle
from harness.results.columns import floats, nan_max
from harness.results.measures.servers import levels, step_integral
from harness.results.measures.staffing import server_levels
from harness.results.tables import Floats, Rows, RunResult, slot_uses

_MAX_BINS = 240
_NEAR = 0.5  # of a limit
_HEIGHT_IN = 0.95


@dataclass(frozen=True)
class _Bins:
    """Equal spans of time from 0 to the end of the last step, and the steps to be counted in them. Times in s."""

    edges: Floats
    steps: Rows

    @property
    def width(self) -> float:
        return float(self.edges[1] - self.edges[0])

    @property
    def axis(self) -> Axis:
        return Axis(f"time, s (bins of {self.width:.3g} s)", start=0.0, end=float(self.edges[-1]), num_ticks=10)

    def total(self, amount: npt.NDArray[Any]) -> Floats:
        """float64[bins]: sum of the steps' amounts in each bin; a step that crosses bins is divided by time."""
        return np.diff(step_integral(self.steps, amount, self.edges))

    def mean(self, level: npt.NDArray[Any]) -> Floats:
        """float64[bins]: time-weighted mean of what all servers have, idle time counting as zero."""
        return np.diff(levels(self.steps, level).integral(self.edges)) / self.width

    def peak(self, level: npt.NDArray[Any]) -> Any:
        """The most that all servers have at a time."""
        return levels(self.steps, level).values.max()

    def panel(
        self, title: str, unit: str, values: Floats, color: int, limit: Mark | None = None, facts: str = ""
    ) -> Panel:
        """The values as an area, below their limit if there is one."""
        marks = [] if limit is None else [limit]
        top = max(float(values.max()), *(mark.value for mark in marks), 0.0) * 1.1 or 1.0
        y = Axis(unit, start=0, end=top, num_ticks=3)
        area = Series(title.partition(" (")[0].lower(), "steps", self.edges, values, color, filled=True, width=1.1)
        return Panel(title, self.axis, y, [area], marks, facts, height_in=_HEIGHT_IN, wide=True)


def timeline_chart(result: RunResult, summary: Mapping[str, Any], plot: PlotConfig) -> Chart | None:
    """Stacked panels on one time axis, with the last arrival and the limits of seats and KV pool; None without steps.
    The subtitle names events that never happened in place of their panels."""
    bins = _bins(result)
    if bins is None:
        return None
    panels = [*_throughput(result, bins, plot), *_engine_state(result, summary, bins, plot)]
    notes = ["black line: last arrival"] if (arrivals := _last_arrival(result, bins)) else []
    for name, column in (("waiting requests", "num_waiting"), ("preemptions", "num_preempted")):
        notes += [] if _column(result, column).any() else [f"no {name}"]
    panels = [_with_window(panel, bins, summary) for panel in panels]
    panels = [replace(panel, marks=[*panel.marks, *arrivals]) for panel in panels]
    if summary.get("num_excluded"):
        notes.append("grey: arrivals left out of the summary")
    subtitle = " · ".join([run_subtitle(summary), *notes])
    return Chart("The run over time", subtitle, panels, columns=1, over_time=True)


def cache_chart(result: RunResult, summary: Mapping[str, Any]) -> Chart | None:
    """Hit rate and where prompt tokens came from; None where no prompt token was found in the prefix cache."""
    bins = _bins(result)
    if bins is None or "num_cached_tokens" not in result.step_rows or not _column(result, "num_cached_tokens").any():
        return None
    cached, prompt = (bins.total(_column(result, f"num_{name}_tokens")) for name in ("cached", "first_admitted"))
    since_start = _share(np.cumsum(cached), np.cumsum(prompt))
    rates = [
        Series("per bin", "steps", bins.edges, _share(cached, prompt), "line"),
        Series("since the start", "steps", bins.edges, since_start, 0),
    ]
    tokens = [
        Series("computed", "steps", bins.edges, prompt / bins.width, 1, filled=True, low=cached / bins.width),
        Series("cached", "steps", bins.edges, cached / bins.width, 0, filled=True, low=np.zeros(len(cached))),
    ]
    share = Axis("of prompt tokens", percent=True, start=0, end=1.02)
    computed = prompt - cached
    facts = f"{_short(cached.sum())} cached, {_short(computed.sum())} computed"
    panels = [
        Panel("Hit rate", bins.axis, share, rates, facts=f"{since_start[-1]:.1%} since the start"),
        Panel("Prompt tokens", bins.axis, Axis("tok/s", start=0), tokens, facts=facts),
    ]
    panels = [replace(_with_window(panel, bins, summary), height_in=1.5, wide=True) for panel in panels]
    return Chart("Prefix cache", run_subtitle(summary), panels, columns=1, over_time=True, legend="")


def _bins(result: RunResult) -> _Bins | None:
    if result.step_rows.empty:
        return None
    starts, durations = (_column(result, name).astype(np.float64) for name in ("start_time", "duration"))
    end = float((starts + durations).max())
    if end <= 0:
        return None
    return _Bins(np.linspace(0.0, end, min(_MAX_BINS, len(starts)) + 1), result.step_rows)


def _throughput(result: RunResult, bins: _Bins, plot: PlotConfig) -> list[Panel]:
    # Each decode gives a token, and so does the end of a prefill, which is counted at a request's first token time.
    # The token at the end of a prefill that repeats preempted work is therefore left out.
    first = floats(result.request_rows, "first_token_time")
    first_tokens = np.sort(first[~np.isnan(first)])
    firsts = np.diff(np.searchsorted(first_tokens, bins.edges, side="right"))
    accepted = (
        _column(result, "num_accepted_tokens") if "num_accepted_tokens" in result.step_rows else 0
    )  # of older runs
    output = (bins.total(_column(result, "num_decode_seqs") + accepted) + firsts) / bins.width
    prefill = bins.total(_column(result, "num_prefill_tokens")) / bins.width
    return [
        bins.panel(plot.name("Output throughput"), "tok/s", output, 0),
        bins.panel(plot.name("Prefill throughput, with recomputation"), "tok/s", prefill, 5),
    ]


def _engine_state(result: RunResult, summary: Mapping[str, Any], bins: _Bins, plot: PlotConfig) -> list[Panel]:
    """Panels of levels, with limits that they come near to; waiting and preemptions where there are some."""
    running, waiting = _column(result, "num_running"), _column(result, "num_waiting")
    used, preempted = _column(result, "num_used_blocks") / result.fleet_blocks, _column(result, "num_preempted")
    peaks = {name: bins.peak(level) for name, level in (("running", running), ("waiting", waiting), ("used", used))}
    seats = (result.meta.get("config") or {}).get("max_num_seqs")
    seats = seats and seats * result.num_servers
    of_seats = "" if seats is None else f" of {seats:,} seats"

    def panel(title: str, note: str, unit: str, values: Floats, color: int, limit: Mark | None = None) -> Panel:
        return bins.panel(f"{plot.name(title)} ({note})", unit, values, color, limit)

    found = [
        panel(
            "Running", f"peak {peaks['running']:,}{of_seats}", "requests", bins.mean(running), 2,
            Mark(f"{seats} seats", "y", seats) if seats and peaks["running"] > _NEAR * seats else None,
        )
    ]  # fmt: skip
    if waiting.any():
        found.append(panel("Waiting", f"peak {peaks['waiting']:,}", "requests", bins.mean(waiting), 1))
    full = Mark("whole pool", "y", 100.0) if peaks["used"] > _NEAR else None
    found.append(panel("KV cache in use", f"peak {peaks['used']:.1%}", "% of blocks", 100 * bins.mean(used), 3, full))
    found += _waste(result, summary, bins, plot)
    if (servers := server_levels(result)) is not None:
        integral = servers[1].integral(bins.edges)
        paid = np.diff(integral) / bins.width
        cost = summary.get("cost")
        note = f"{servers[1].values.max():,.0f} at most" + ("" if cost is None else f", ${cost:,.2f} in all")
        found.append(panel("Servers paid for", note, "servers", paid, 6))
        if cost:
            spent = cost * (integral[1:] - integral[0]) / (integral[-1] - integral[0])
            found.append(panel("Cost so far", f"${cost:,.2f} in all", "$", spent, 5))
    if preempted.any():
        per_s = bins.total(preempted) / bins.width
        found.append(panel("Preemptions", f"{preempted.sum():,} in all", "per s", per_s, 7))
    return found


def _waste(result: RunResult, summary: Mapping[str, Any], bins: _Bins, plot: PlotConfig) -> list[Panel]:
    """Slots that are held, or of no use to the next request, and hold no token; none where that was not recorded."""
    uses = slot_uses(result)
    if uses is None:
        return []
    kinds = ("reserved", "internal", "external")
    means = ", ".join(f"{kind} {summary.get(f'mean_kv_{kind}') or 0:.1%}" for kind in kinds)
    wasted = bins.mean(np.sum([uses[kind] for kind in kinds], axis=0) / (result.fleet_blocks * result.block_size))
    return [bins.panel(plot.name("KV memory that holds no tokens"), "% of slots", 100 * wasted, 4, facts=means)]


def _last_arrival(result: RunResult, bins: _Bins) -> Sequence[Mark]:
    """A line where arrivals end: what follows is drain."""
    last = nan_max(floats(result.request_rows, "arrival_time"))
    return [Mark("last arrival", "x", last, "ink")] if 0 < last < bins.edges[-1] else []


def _with_window(panel: Panel, bins: _Bins, summary: Mapping[str, Any]) -> Panel:
    """With a grey veil where arrivals are outside the window, if it cuts any."""
    if not summary.get("num_excluded"):
        return panel
    last = float(bins.edges[-1])
    start, end = (summary[key] for key in ("window_start_s", "window_end_s"))
    if start is None or end is None:  # no request counts
        return replace(panel, shaded=[(0.0, last)])
    return replace(panel, shaded=[(low, min(high, last)) for low, high in ((0.0, start), (end, last)) if low < last])


def _column(result: RunResult, name: str) -> npt.NDArray[Any]:
    return result.step_rows[name].to_numpy()


def _short(count: float) -> str:
    return f"{count / 1e6:,.1f}M" if count >= 1e6 else f"{count / 1e3:,.1f}k" if count >= 1e4 else f"{count:,.0f}"


def _share(part: Floats, whole: Floats) -> Floats:
    """NaN, and so a break in the line, where nothing was admitted."""
    return np.divide(part, whole, out=np.full_like(whole, np.nan), where=whole > 0)
