"""How much the mean wait of a run may differ from that of a long run, by heavy-traffic theory, not the run's data.

Long queues are rare: one may delay hundreds of requests and come once in many thousands. The batch means of a run that
happened to have no such queue give too narrow an interval. Theory predicts the queue of a long run from the load (the
offered share of capacity), the variability of arrivals and of service times, and the number of requests served at once.

    beta    = (1 - load) · sqrt(at once / ((ca² + 1) / 2))                  spare room in standard deviations
    share   = 1 / (1 + beta · N(beta) / n(beta))                            of requests that wait
    wait    = load · (ca² + cs²) / (2 · rate · (1 - load))                  mean wait of those, s
    memory  = 4 · load² · (ca² + cs²) / (1 - load)²                         requests that one long queue delays together

ca and cs are the coefficients of variation of times between arrivals and of service times, N and n the standard normal
distribution and density. share: Halfin and Whitt 1981, "Heavy-traffic limits for queues with many exponential servers";
the factor (ca² + 1) / 2 is the peakedness of arrivals. wait and memory: reflected Brownian motion, Whitt 1989,
"Planning queueing simulations", whose mean over n requests has the variance of n / memory independent values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from harness.results.tables import Floats

_Z = 2.5  # standard deviations for 95 %: more than of a normal value, since waits are skewed
_NORMAL = NormalDist()


@dataclass(frozen=True)
class QueueNoise:
    """The queue of a long run at the load of a run.

    Attributes:
        share: of requests that wait.
        wait_s: mean wait of those.
        memory_requests: how many requests in a row the same queue delays; infinite at capacity.
    """

    share: float
    wait_s: float
    memory_requests: float

    def of_mean(self, num_requests: int) -> float:
        """Half of the 95 % interval of the mean wait of all requests, s."""
        if not self.share:
            return 0.0
        return _Z * self.wait_s * math.sqrt(self.share * self.memory_requests / num_requests)

    def of_share(self, share: float, num_requests: int) -> float:
        """Half of the 95 % interval of the share of requests below a percentile, which is `share` of a long run."""
        if not self.share:
            return 0.0
        touched = min(self.share, 1 - share)
        return _Z * share * math.sqrt(touched * self.memory_requests / num_requests)


NO_QUEUE = QueueNoise(0.0, 0.0, 0.0)


def queue_noise(load: float, arrival_s: Floats, service_s: Floats) -> QueueNoise:
    """The queue that theory predicts from the finished requests of a run, in order of arrival.

    Args:
        load: offered share of capacity; NaN, as in a closed loop, gives `NO_QUEUE`.
        service_s: times without the wait in the queue.
    """
    if math.isnan(load) or len(arrival_s) < 2 or not arrival_s[-1] > arrival_s[0] or not service_s.mean() > 0:
        return NO_QUEUE
    if load >= 1:
        return QueueNoise(1.0, math.inf, math.inf)
    rate = (len(arrival_s) - 1) / (arrival_s[-1] - arrival_s[0])
    of_arrivals, of_service = _variability(np.diff(arrival_s)), _variability(service_s)
    at_once = rate * float(service_s.mean()) / max(load, 1e-9)
    beta = min((1 - load) * math.sqrt(at_once / ((of_arrivals + 1) / 2)), 30.0)
    variability = of_arrivals + of_service
    return QueueNoise(
        share=1 / (1 + beta * _NORMAL.cdf(beta) / _NORMAL.pdf(beta)),
        wait_s=load * variability / (2 * rate * (1 - load)),
        memory_requests=4 * load**2 * variability / (1 - load) ** 2,
    )


def _variability(values: Floats) -> float:
    """Squared coefficient of variation."""
    return float(values.var() / values.mean() ** 2)
