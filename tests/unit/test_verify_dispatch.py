"""What a stack asks of our kernels, and that it can be proved."""

from __future__ import annotations

import pytest

from tooling.errors import InputError
from tooling.verify.dispatch import requested_kernels

FOLDER = {"BLACKWELL_KERNELS_COUNTERS": "/tmp/blackwell-kernels"}  # noqa: S108


def test_features_are_asked_for_by_variables():
    asked = {"BLACKWELL_KERNELS_ALLREDUCE_RMSNORM": "1", "BLACKWELL_KERNELS_TOPK": "off"}
    assert requested_kernels(asked | FOLDER) == ("allreduce-rmsnorm",)
    assert requested_kernels({"BLACKWELL_KERNELS_ALLREDUCE": "1"} | FOLDER) == ("allreduce",)
    assert requested_kernels({}) == ()


def test_a_request_that_nobody_could_prove_is_refused():
    with pytest.raises(InputError, match="nobody could prove"):
        requested_kernels({"BLACKWELL_KERNELS_TOPK": "1"})
