"""Single requests of a run: TTFT over their arrival and over the length of their prompt."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from harness.figures.chart import Axis, Chart, Mark, Panel, Series
from harness.results.columns import floats
from harness.results.tables import Floats, Ints, Rows

MOST_POINTS = 3000
_EXTREMES = 400  # of the points that are kept, those with the largest values


def requests_chart(requests: Rows, limits: Mapping[str, float]) -> Chart | None:
    """A point for each of the `requests`, or for some of very many. limits: the SLO in ms, by latency."""
    requests = requests[floats(requests, "ttft") > 0]
    if requests.empty:
        return None
    requests = requests.iloc[np.argsort(floats(requests, "arrival_time"), kind="stable")]
    ttft = floats(requests, "ttft") * 1e3
    rows = thinned(ttft)
    some = requests.iloc[rows]
    texts = {"request": [str(each) for each in some["request_id"].tolist()]}
    for name in ("prompt", "output"):
        texts[name] = [f"{each:,} tokens" for each in some[f"num_{name}_tokens"].tolist()]
    facts = f"{len(rows):,} of {len(ttft):,} requests, the slowest among them" if len(ttft) > MOST_POINTS else ""
    marks = [Mark(f"SLO TTFT {limits['ttft']:g} ms", "y", limits["ttft"])] if "ttft" in limits else []
    y = Axis("TTFT, ms", log=True)
    arrival = floats(requests, "arrival_time")
    over_time = Series("requests", "points", arrival[rows], ttft[rows], marker="o", texts=texts)
    prompts = Series("", "points", some["num_prompt_tokens"].to_numpy(), ttft[rows], marker="o", texts=texts)
    lengths = Axis("prompt, tokens", log=True)
    panels = [
        Panel("TTFT over time", Axis("arrival, s"), y, [over_time, *_medians(arrival, ttft)], marks, facts),
        Panel("TTFT by length of the prompt", lengths, y, [prompts], marks, facts),
    ]
    return Chart("Single requests", "", panels)


def thinned(values: Floats, most: int = MOST_POINTS) -> Ints:
    """int64[<= most]: rows to draw, in order: every k-th one, and the `_EXTREMES` largest values, the tail."""
    if len(values) <= most:
        return np.arange(len(values))
    evenly = np.linspace(0, len(values) - 1, most - _EXTREMES).astype(np.int64)
    largest = np.argpartition(values, -_EXTREMES)[-_EXTREMES:]
    return np.unique(np.concatenate((evenly, largest)))


def _medians(arrival_s: Floats, ttft_ms: Floats) -> list[Series]:
    """Medians of equally many requests each, where there are enough for a line."""
    parts = min(40, len(ttft_ms) // 25)
    if parts < 4:
        return []
    groups = np.array_split(np.arange(len(ttft_ms)), parts)
    middles, medians = (np.array([np.median(values[group]) for group in groups]) for values in (arrival_s, ttft_ms))
    return [Series("median", "line", middles, medians, 1)]
