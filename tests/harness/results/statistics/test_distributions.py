"""The normal distribution and Student's t against SciPy's."""

import numpy as np
import pytest
from scipy import special, stats

from harness.results.statistics.distributions import log_normal_cdf, normal_quantile, t_quantile


def test_the_logarithm_of_the_normal_distribution_function() -> None:
    x = np.concatenate([np.linspace(-50, 40, 50_001), [-1e6, -0.0, 0.0]])
    np.testing.assert_allclose(log_normal_cdf(x), special.log_ndtr(x), atol=1e-8, rtol=1e-9)


@pytest.mark.parametrize("probability", [0.6, 0.9, 0.975, 0.9999])
def test_quantiles(probability: float) -> None:
    assert normal_quantile(probability) == pytest.approx(special.ndtri(probability), rel=1e-12)
    for degrees in (*range(1, 40), 400, 401):
        assert t_quantile(probability, degrees) == pytest.approx(stats.t.ppf(probability, degrees), rel=1e-10)
