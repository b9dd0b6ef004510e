import pytest
from pydantic import ValidationError

from tooling.gates.records import Check, GateResult, Verdict, worst


def _result(verdict: Verdict, *checks: Check) -> GateResult:
    return GateResult(
        gate="probe", verdict=verdict, checks=checks, configuration_sha256="0" * 64, started="a", ended="b"
    )


def test_no_verdicts_at_all_is_a_failure():
    assert worst([]) is Verdict.FAIL


def test_a_gate_is_as_good_as_its_worst_check():
    assert worst([Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.NO_BASELINE]) is Verdict.INCONCLUSIVE


def test_a_gate_without_checks_cannot_be_recorded():
    with pytest.raises(ValidationError, match="at least 1 item"):
        _result(Verdict.PASS)


def test_a_verdict_that_was_typed_by_hand_is_refused():
    failed = Check(name="nan", verdict=Verdict.FAIL, seen="null logprob")
    with pytest.raises(ValidationError, match="not the worst"):
        _result(Verdict.PASS, failed)
    assert _result(Verdict.FAIL, failed).verdict is Verdict.FAIL
