"""What versions of vLLM's OffloadingConnector decide differently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.core.offloading.recency import RecencyRule

AtEnd = Literal["nothing", "all", "committed"]
Reserves = Literal["nothing", "prompts", "decodes"]
BusyBlocks = Literal["free", "held", "spared"]


@dataclass(frozen=True)
class OffloadingRules:
    """What versions of vLLM's connector decide differently; the defaults are those of 0.33.

    Attributes:
        chunk_blocks: blocks of the device in a chunk.
        by_request: chunks can be found when all that is stored of their request is done, which is when it ends or is
            preempted; what is being written is no hit; blocks of a request are held until it is stored. If not, chunks
            can be found when their job is done; who needs one that is being written waits for it; blocks are free
            when a request ends, and who is given one that is still read waits until it is stored.
        recency: which chunk is evicted first.
        at_end: what is stored of the last tokens of a request when it has ended: "nothing" that the steps have not;
            "all" of its tokens; or all but the last, which has no KV ("committed").
        stores_again: a request that was preempted offers all its chunks once more; if not, those that it has not.
        reserves: what a load leaves blocks for: "nothing"; what admitted "prompts" and other loads still need; or, with
            drafts, also the first decode step of each of these and of its own ("decodes").
        busy_blocks: where steps are planned ahead, what becomes of the blocks of a sequence that the step under way
            computes something of, when it gives way, stops or is aborted: they are "free" at once; or "held" until that
            step has run, and more sequences give way for those who lack blocks now; or such a sequence does not give
            way ("spared"), and else they are held.
        holders_first: of those who are passed over, who holds blocks comes before all others who wait, whatever their
            priorities. If not, all who are passed over come before those who wait.
    """

    chunk_blocks: int = 1
    by_request: bool = False
    recency: RecencyRule = "request"
    at_end: AtEnd = "committed"
    stores_again: bool = True
    reserves: Reserves = "decodes"
    busy_blocks: BusyBlocks = "spared"
    holders_first: bool = True
