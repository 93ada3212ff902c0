"""How the spans of recovered runs are classified."""

from __future__ import annotations

from experiments.recovery.batches import errors
from experiments.recovery.steps import Chunk, Span, Step


def test_errors_are_those_of_spans_of_one_kind() -> None:
    decodes, more = Step(3, 300, 30_000, ()), Step(5, 500, 50_000, ())
    prompt = Step(3, 303, 31_000, (Chunk(7, 0, 300, True),))
    spans = [
        Span((decodes, decodes), 20_000_000),
        Span((decodes,), 12_000_000),
        Span((decodes, more), 50_000_000),  # padded to 4 and to 8
        Span((decodes, prompt), 40_000_000),
        Span((), 5_000_000),
    ]
    found = errors(spans, lambda step: 9e6 if step is decodes else 30e6, (1, 2, 4, 8)).to_dict("records")
    assert found == [
        {"kind": "decode", "tokens_up_to": 4, "count": 3, "measured_ms": 32.0, "priced_ms": 27.0,
         "error_ms": -1.667, "error_pct": -15.625},
        {"kind": "with prompts", "tokens_up_to": 512, "count": 1, "measured_ms": 40.0, "priced_ms": 39.0,
         "error_ms": -1.0, "error_pct": -2.5},
    ]  # fmt: skip
