import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tooling.gates.student import regularised_beta, t_quantile, t_upper_tail


@pytest.mark.parametrize(
    ("tail", "df", "printed"),
    [
        (0.05, 1, 6.314),
        (0.05, 2, 2.920),
        (0.05, 4, 2.132),
        (0.05, 10, 1.812),
        (0.025, 3, 3.182),
        (0.01, 5, 3.365),
        (0.05, 1000, 1.646),
    ],
)
def test_quantiles_are_those_of_the_printed_tables(tail: float, df: float, printed: float):
    assert t_quantile(tail, df) == pytest.approx(printed, abs=6e-4)


@given(st.floats(0.001, 0.5), st.floats(1.0, 60.0))
def test_quantile_and_tail_are_inverse(tail: float, df: float):
    assert t_upper_tail(t_quantile(tail, df), df) == pytest.approx(tail, rel=1e-5)


def test_one_degree_of_freedom_has_a_closed_form():
    # Cauchy distribution.
    assert t_upper_tail(2.0, 1.0) == pytest.approx(0.5 - math.atan(2.0) / math.pi)


def test_the_incomplete_beta_function_keeps_to_its_ends():
    assert regularised_beta(2.0, 3.0, 0.0) == 0.0
    assert regularised_beta(2.0, 3.0, 1.0) == 1.0


@pytest.mark.parametrize(("tail", "df"), [(0.0, 3.0), (0.6, 3.0), (0.05, 0.0)])
def test_senseless_arguments_are_refused(tail: float, df: float):
    with pytest.raises(ValueError, match="no t quantile"):
        t_quantile(tail, df)
