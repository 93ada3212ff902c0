"""Whether compared configurations have step times of different kinds."""

from __future__ import annotations

from collections.abc import Iterable

_ROOFLINE, _MEASURED = "step times: cost=roofline", "step times: measured kernels"


def mixed_text(sources: Iterable[object]) -> str | None:
    """What to know where some configurations are priced by measured kernels and others by the roofline, by the
    `cost_source` of each; None where all are alike."""
    texts = [source for source in sources if isinstance(source, str)]
    by_roofline = sum(text.startswith(_ROOFLINE) for text in texts)
    if not by_roofline or not any(text.startswith(_MEASURED) for text in texts):
        return None
    return (
        f"{by_roofline} of {len(texts)} configurations have step times from the roofline, the others from measured "
        "kernels: which is faster is not known where one of each is compared"
    )
