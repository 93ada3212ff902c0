"""What a reader of a comparison must know about the keys that differ between its runs."""

from collections.abc import Collection

import pandas as pd


def notes_on(runs: pd.DataFrame, parameters: Collection[str]) -> list[str]:
    """One line for each key whose effect is not, or not all, in the compared times."""
    notes = []
    if "block_size" in parameters and runs["simulated"].astype(bool).any():
        notes.append(
            "block_size moves only capacity here, what fits the KV pool and what requests share: "
            "step times are priced without it"
        )
    key = "scheduler.enable_prefix_caching"
    if key in parameters and "prompts_share" in runs and not runs["prompts_share"].astype(bool).any():
        notes.append(
            f"{key} finds nothing here, as no prompts of the trace begin alike; try trace=sharegpt_multiturn, "
            "shared_prefix, mooncake or bailian"
        )
    return notes
