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
    return notes
