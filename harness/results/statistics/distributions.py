"""What is needed of the normal distribution and of Student's t, so that simulating needs no SciPy (140 MB)."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from harness.results.tables import Floats

# log(exp(z²) erfc(z) / t) over t = 1 / (1 + z / 2) for z >= 0, fitted to SciPy's `erfcx` at 2,000 nodes: within 6e-9.
_SCALED_ERFC = (
    -0.65132685989,
    0.64196979236,
    0.019476473204,
    -0.0095615147868,
    -0.00094659534448,
    0.00036683949785,
    4.2523324807e-05,
    -2.0278578113e-05,
    -1.6242900045e-06,
    1.3036558356e-06,
    1.5626441823e-08,
    -8.5238096e-08,
    6.5290545906e-09,
)


def log_normal_cdf(x: Floats) -> Floats:
    """The logarithm of the standard normal distribution function, within 1e-8, far tails included."""
    from numpy.polynomial import Chebyshev  # imported late, as a run does without it

    z = np.abs(x) / math.sqrt(2)
    t = 1 / (1 + z / 2)
    log_tail = np.log(t / 2) + Chebyshev(_SCALED_ERFC, domain=[0, 1])(t) - z**2
    return np.where(x < 0, log_tail, np.log1p(-np.exp(log_tail)))


def normal_quantile(probability: float) -> float:
    """The inverse of the standard normal distribution function."""
    return NormalDist().inv_cdf(probability)


def t_quantile(probability: float, degrees: int) -> float:
    """The inverse of Student's distribution function at `probability` > 1/2, for a whole number of `degrees`."""
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _t_within(middle, degrees) < 2 * probability - 1 else (low, middle)
    return math.tan(low) * math.sqrt(degrees)


def _t_within(angle: float, degrees: int) -> float:
    """The probability that |t| is below tan(angle) √degrees: Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    odd = degrees % 2
    term, total = (math.cos(angle), 0.0) if odd else (1.0, 0.0)
    for k in range(2 + odd, degrees + 1, 2):
        total += term
        term *= (k - 1) / k * math.cos(angle) ** 2
    within = math.sin(angle) * total
    return 2 / math.pi * (angle + within) if odd else within
