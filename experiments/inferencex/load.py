"""What scripts of InferenceX choose the settings of a server by."""

from __future__ import annotations

from typing import NamedTuple

DRAFTS = "speculation, of which the share of accepted drafts is not told"


class Load(NamedTuple):
    """What a script chooses by.

    Attributes:
        day: on which the row was measured, such as 2025-11-02.
        num_gpus, prompt, output, clients: of the row; lengths are the longest that the client sends.
    """

    day: str
    num_gpus: int
    prompt: int
    output: int
    clients: int
