"""For which batches are the prices of a cost model wrong?"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from experiments.recovery.mixed import graph_of
from experiments.recovery.steps import Price, Span

PROMPT_TOKENS = (256, 512, 768, 1024, 1536, 2047, 2048)  # upper ends of the classes of steps with prompts


def errors(spans: Sequence[Span], price: Price, sizes: Sequence[int]) -> pd.DataFrame:
    """Measured and priced time in ms of two kinds of spans: decode steps that one CUDA graph serves, by the size of the
    graph (one of `sizes`), and spans with a single step with prompts, by the tokens of that step.

    Columns: kind, tokens_up_to, count, measured_ms, priced_ms, error_ms (per decode step or per span), error_pct.
    """
    rows = []
    for span in spans:
        with_prompts = [step for step in span.steps if step.chunks]
        graphs = {graph_of(step, sizes) for step in span.steps}
        if len(with_prompts) == 1:
            num_tokens = with_prompts[0].num_decodes + sum(chunk.num_tokens for chunk in with_prompts[0].chunks)
            kind, size, count = "with prompts", next(end for end in PROMPT_TOKENS if end >= num_tokens), 1
        elif len(graphs) == 1 and (graph := graphs.pop()) is not None:
            kind, size, count = "decode", graph, len(span.steps)
        else:
            continue
        rows.append((kind, size, count, span.time_ns * 1e-6, sum(map(price, span.steps)) * 1e-6))
    table = pd.DataFrame(rows, columns=["kind", "tokens_up_to", "count", "measured_ms", "priced_ms"])
    found = table.groupby(["kind", "tokens_up_to"]).sum()
    found["error_ms"] = (found["priced_ms"] - found["measured_ms"]) / found["count"]
    found["error_pct"] = 100 * (found["priced_ms"] / found["measured_ms"] - 1)
    return found.round(3).reset_index()
