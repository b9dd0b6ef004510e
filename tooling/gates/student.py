"""Quantiles of Student's t distribution, so that a decision rule needs no numerical library."""

from __future__ import annotations

import math
from functools import lru_cache

_SERIES_LIMIT = 300
_TINY = 1e-300
_ACCURACY = 1e-12


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Continued fraction of the incomplete beta function by Lentz's method.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.5.8.
    """
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > _TINY else _TINY)
    value = d
    for m in range(1, _SERIES_LIMIT):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 + term * d
            d = 1.0 / (d if abs(d) > _TINY else _TINY)
            c = 1.0 + term / c
            c = c if abs(c) > _TINY else _TINY
            value *= d * c
        if abs(d * c - 1.0) < _ACCURACY:
            break
    return value


def regularised_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), with x from 0 to 1."""
    if x <= 0.0 or x >= 1.0:
        return min(max(x, 0.0), 1.0)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _beta_fraction(a, b, x) / a
    return 1.0 - front * _beta_fraction(b, a, 1.0 - x) / b


def t_upper_tail(t: float, df: float) -> float:
    """P(T > t) for t >= 0 and any positive, also fractional, degrees of freedom."""
    return 0.5 * regularised_beta(df / 2.0, 0.5, df / (df + t * t))


@lru_cache(maxsize=4096)
def t_quantile(tail: float, df: float) -> float:
    """The t that is exceeded with probability `tail`.

    Args:
        tail: From above 0 to 0.5.
        df: Degrees of freedom, positive, may be fractional.

    Raises:
        ValueError: An argument is out of its range.
    """
    if not 0.0 < tail <= 0.5 or df <= 0.0:  # noqa: PLR2004  # half of the distribution
        raise ValueError(f"no t quantile for tail {tail} and {df} degrees of freedom")
    low, high = 0.0, 1.0
    while t_upper_tail(high, df) > tail:
        high *= 2.0
    while high - low > 1e-9 * high:  # far below any spread that is measured
        middle = 0.5 * (low + high)
        low, high = (middle, high) if t_upper_tail(middle, df) > tail else (low, middle)
    return high
