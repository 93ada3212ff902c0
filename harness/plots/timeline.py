"""One run over time: throughput, queues, KV cache, preemptions and prefix-cache hits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.config.plotting import PlotConfig
from harness.plots.style import (
    COLORS,
    GREY,
    INK,
    LIGHT,
    SLO,
    WIDTHS_IN,
    head,
    panels,
    plain_numbers,
    run_subtitle,
)
from harness.results.servers import step_integral
from harness.results.tables import Floats, RunResult, slot_uses

_MAX_BINS = 240
_NEAR = 0.5  # of a limit
_PANEL_IN = 0.95


@dataclass(frozen=True)
class _Bins:
    """Equal spans of time from 0 to the end of the last step, and the steps to be counted in them. Times in s."""

    edges: Floats
    steps: pd.DataFrame

    @property
    def width(self) -> float:
        return float(self.edges[1] - self.edges[0])

    def total(self, amount: npt.NDArray[Any]) -> Floats:
        """float64[bins]: sum of the steps' amounts in each bin; a step that crosses bins is divided by time."""
        return np.diff(step_integral(self.steps, amount, self.edges))

    def mean(self, level: npt.NDArray[Any]) -> Floats:
        """float64[bins]: time-weighted mean, idle time counting as zero."""
        return self.total(level * self.steps["duration"].to_numpy()) / self.width


@dataclass(frozen=True)
class _Panel:
    """One panel. absent: the text that replaces it where all values are zero. limit: what the values cannot exceed,
    drawn where they come near it; `peak` is their highest value in a step. note: stands in brackets after the title;
    facts: a line under it."""

    title: str
    unit: str
    values: Floats
    color: str
    absent: str = ""
    limit: float | None = None
    peak: float = 0.0
    note: str = ""
    facts: str = ""

    @property
    def shows_limit(self) -> bool:
        return self.limit is not None and self.peak > _NEAR * self.limit

    @property
    def top(self) -> float:
        highest = float(self.values.max())
        return max(highest, self.limit or 0.0) * 1.12 if self.shows_limit else highest * 1.1 or 1.0


def draw_timeline(result: RunResult, summary: Mapping[str, Any], plot: PlotConfig) -> Figure | None:
    """Stacked panels on one time axis, with the last arrival and the limits of seats and KV pool; None without steps. A
    text replaces the panel of events that never happened."""
    bins = _bins(result)
    if bins is None:
        return None
    contents = [*_throughput(result, bins), *_engine_state(result, summary, bins)]
    notes = [panel.absent for panel in contents if panel.absent and not panel.values.any()]
    if summary["num_excluded"]:
        notes.append("grey: arrivals left out of the summary")
    contents = [panel for panel in contents if not panel.absent or panel.values.any()]
    subtitle = " · ".join([run_subtitle(summary), *notes])
    grid_size = (WIDTHS_IN[plot.width], _PANEL_IN * len(contents) + 0.3)
    figure, grid = panels("The run over time", subtitle, len(contents), 1, grid_size, sharex=True)
    figure.align_ylabels()
    for axes, panel in zip(grid[:, 0], contents, strict=True):
        axes.stairs(panel.values, bins.edges, color=panel.color, fill=True, alpha=0.18)
        axes.stairs(panel.values, bins.edges, color=panel.color, linewidth=1.1, baseline=None)
        head(axes, plot.name(panel.title) + (f" ({panel.note})" if panel.note else ""), panel.facts)
        axes.set_ylabel(panel.unit)
        axes.set_ylim(0, panel.top)
        axes.locator_params(axis="y", nbins=3)
        plain_numbers(axes, "y")
        if panel.shows_limit:
            axes.axhline(panel.limit, color=SLO, linewidth=0.9, linestyle=(0, (4, 2)), label="limit")
        _shade_outside(axes, bins, summary)
    _mark_last_arrival(list(grid[:, 0]), result, bins)
    _time_axis(grid[-1, 0], bins)
    return figure


def _mark_last_arrival(column: list[Axes], result: RunResult, bins: _Bins) -> None:
    """A line where arrivals end: what follows is drain."""
    arrivals = result.requests["arrival_time"].dropna()
    if arrivals.empty or not 0 < arrivals.max() < bins.edges[-1]:
        return
    last = float(arrivals.max())
    for axes in column:
        axes.axvline(last, color=INK, linewidth=0.8, linestyle=":", label="last arrival")
    share = last / float(bins.edges[-1])
    style: dict[str, Any] = {"size": 6.5, "color": INK, "va": "bottom", "in_layout": False}
    place = "right" if share > 0.85 else "left" if share < 0.15 else "center"
    options: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "ha": place}
    column[0].annotate("last arrival", (last, 1), (0, 2), **style, **options)


def draw_cache(result: RunResult, summary: Mapping[str, Any], plot: PlotConfig) -> Figure | None:
    """Hit rate and where prompt tokens came from; None where no prompt token was found in the prefix cache."""
    bins = _bins(result)
    cached_per_step = _column(result, "num_cached_tokens")
    if bins is None or not cached_per_step.any():
        return None
    cached, prompt = bins.total(cached_per_step), bins.total(_column(result, "num_first_admitted_tokens"))
    cumulative = _share(np.cumsum(cached), np.cumsum(prompt))
    size = (WIDTHS_IN[plot.width], 3.6)
    figure, grid = panels("Prefix cache", run_subtitle(summary), 2, 1, size, sharex=True)
    rate, tokens = grid[:, 0]
    rate.stairs(100 * _share(cached, prompt), bins.edges, color=LIGHT, baseline=None)
    rate.stairs(100 * cumulative, bins.edges, color=COLORS[0], baseline=None, linewidth=1.8)
    head(rate, plot.name("Hit rate"), f"{cumulative[-1]:.1%} since the start (blue), per bin (grey)")
    rate.set_ylabel("% of prompt")
    rate.set_ylim(0, 102)
    computed = prompt - cached
    tokens.stairs(prompt / bins.width, bins.edges, baseline=cached / bins.width, fill=True, color=COLORS[1], alpha=0.55)
    tokens.stairs(cached / bins.width, bins.edges, fill=True, color=COLORS[0], alpha=0.75)
    facts = f"{_short(cached.sum())} cached (blue), {_short(computed.sum())} computed (orange)"
    head(tokens, plot.name("Prompt tokens"), facts)
    tokens.set_ylabel("tok/s")
    tokens.set_ylim(0, None)
    plain_numbers(tokens, "y")
    for axes in (rate, tokens):
        _shade_outside(axes, bins, summary)
    _time_axis(tokens, bins)
    return figure


def _bins(result: RunResult) -> _Bins | None:
    if result.steps.empty:
        return None
    starts = result.steps["start_time"].to_numpy(dtype=np.float64)
    durations = result.steps["duration"].to_numpy(dtype=np.float64)
    end = float((starts + durations).max())
    if end <= 0:
        return None
    return _Bins(np.linspace(0.0, end, min(_MAX_BINS, len(starts)) + 1), result.steps)


def _throughput(result: RunResult, bins: _Bins) -> list[_Panel]:
    # Each decode gives a token, and so does the end of a prefill, which is counted at a request's first token time.
    # The token at the end of a prefill that repeats preempted work is therefore left out.
    first_tokens = np.sort(result.requests["first_token_time"].dropna().to_numpy(dtype=np.float64))
    firsts = np.diff(np.searchsorted(first_tokens, bins.edges, side="right"))
    accepted = _column(result, "num_accepted_tokens") if "num_accepted_tokens" in result.steps else 0  # of older runs
    output = (bins.total(_column(result, "num_decode_seqs") + accepted) + firsts) / bins.width
    prefill = bins.total(_column(result, "num_prefill_tokens")) / bins.width
    return [
        _Panel("Output throughput", "tok/s", output, COLORS[0]),
        _Panel("Prefill throughput, with recomputation", "tok/s", prefill, COLORS[5]),
    ]


def _engine_state(result: RunResult, summary: Mapping[str, Any], bins: _Bins) -> list[_Panel]:
    running, waiting = _column(result, "num_running"), _column(result, "num_waiting")
    used, preempted = _column(result, "num_used_blocks") / result.fleet_blocks, _column(result, "num_preempted")
    seats = (result.meta.get("config") or {}).get("max_num_seqs")
    seats = seats and seats * result.num_servers
    of_seats = "" if seats is None else f" of {seats:,} seats"
    return [
        _Panel(
            "Running", "requests", bins.mean(running), COLORS[2], limit=seats, peak=float(running.max()),
            note=f"peak {running.max():,}{of_seats}",
        ),
        _Panel(
            "Waiting", "requests", bins.mean(waiting), COLORS[1], absent="no waiting requests",
            note=f"peak {waiting.max():,}",
        ),
        _Panel(
            "KV cache in use", "% of blocks", 100 * bins.mean(used), COLORS[3], limit=100.0,
            peak=100 * float(used.max()), note=f"peak {used.max():.1%}",
        ),
        *_waste(result, summary, bins),
        _Panel(
            "Preemptions", "per s", bins.total(preempted) / bins.width, COLORS[7], absent="no preemptions",
            note=f"{preempted.sum():,} in all",
        ),
    ]  # fmt: skip


def _waste(result: RunResult, summary: Mapping[str, Any], bins: _Bins) -> list[_Panel]:
    """Slots that are held, or of no use to the next request, and hold no token; none where that was not recorded."""
    uses = slot_uses(result)
    if uses is None:
        return []
    kinds = ("reserved", "internal", "external")
    means = [f"{kind} {summary.get(f'mean_kv_{kind}') or 0:.1%}" for kind in kinds]
    wasted = bins.mean(np.sum([uses[kind] for kind in kinds], axis=0) / (result.fleet_blocks * result.block_size))
    return [_Panel("KV memory that holds no tokens", "% of slots", 100 * wasted, COLORS[4], facts=", ".join(means))]


def _column(result: RunResult, name: str) -> npt.NDArray[Any]:
    return result.steps[name].to_numpy()


def _short(count: float) -> str:
    return f"{count / 1e6:,.1f}M" if count >= 1e6 else f"{count / 1e3:,.1f}k" if count >= 1e4 else f"{count:,.0f}"


def _share(part: Floats, whole: Floats) -> Floats:
    """NaN, and so a break in the line, where nothing was admitted."""
    return np.divide(part, whole, out=np.full_like(whole, np.nan), where=whole > 0)


def _shade_outside(axes: Axes, bins: _Bins, summary: Mapping[str, Any]) -> None:
    """Grey where arrivals are outside the window, if it cuts any."""
    if not summary["num_excluded"]:
        return
    start, end = summary["window_start_s"], summary["window_end_s"]
    for low, high in ((0.0, start), (end, float(bins.edges[-1]))):
        axes.axvspan(low, min(high, bins.edges[-1]), color=GREY, alpha=0.12, linewidth=0)


def _time_axis(axes: Axes, bins: _Bins) -> None:
    axes.set_xlim(0, bins.edges[-1])
    axes.set_xlabel(f"time, s (bins of {bins.width:.3g} s)")
    plain_numbers(axes, "x")
