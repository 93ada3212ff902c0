"""What comes first of all that happens at the same time, where several servers share a clock.

    ENDS       steps end, and requests with them, which may bring others
    READINGS   a router reads the metrics of the servers
    HANDOVERS  requests whose prompt another server has computed come to the one that decodes them
    ARRIVALS   requests arrive, and the router chooses their servers, on what is known after all ends
    PLANS      servers plan, each on its own
    TRANSFERS  what they asked for of each other's KV begins to move

So it changes nothing in which order servers come to a time.
"""

from __future__ import annotations

from typing import Final

from simulator.arrivals import NEVER

ENDS: Final = 1  # the priority of SimPy's time-outs
READINGS: Final = 2
HANDOVERS: Final = 3
ARRIVALS: Final = 4
PLANS: Final = 5
TRANSFERS: Final = 6
PHASE_BITS: Final = 3  # of a moment; a compiled core shifts large numbers faster than it multiplies them
PHASE_MASK: Final = 7


def moment(time_ns: int, phase: int) -> int:
    """A number for a phase of a time, by which what happens there is in order; NEVER for that time."""
    return NEVER if time_ns == NEVER else time_ns << PHASE_BITS | phase
