"""A boot that is lost after its gates ran: the record says so and keeps what they saw."""

from typing import cast

import pytest

from tooling.boot import BootError, Endpoint, Reason
from tooling.gates.records import Check, GateResult, Verdict
from tooling.verify.boots import LAST_ANSWER, still_answers, with_last_answer

THROUGHPUT = GateResult(
    gate="throughput",
    verdict=Verdict.PASS,
    checks=(Check(name="output-rate@c4", verdict=Verdict.PASS, seen="800 tok/s"),),
    configuration_sha256="0",
    started="2026-01-01T00:00:00+00:00",
    ended="2026-01-01T00:00:01+00:00",
)


class Boot:
    """An endpoint whose questions end as the test says."""

    def __init__(self, silent: str = "", dead: str = "") -> None:
        self.silent, self.dead = silent, dead

    def check(self) -> None:
        if self.silent:
            raise BootError(self.silent, details=["seen: nothing"], reason=Reason.STOPPED_ANSWERING)

    def check_alive(self) -> None:
        if self.dead:
            raise BootError(self.dead, reason=Reason.EXITED)


def test_an_engine_that_still_answers_passes():
    result = with_last_answer(cast("Endpoint", Boot()), THROUGHPUT)
    assert result.verdict is Verdict.PASS
    assert still_answers(result)


@pytest.mark.parametrize(
    "boot", [Boot(silent="no text came"), Boot(dead="exit code 17")], ids=["silent", "dead"]
)
def test_an_engine_that_was_lost_fails_and_its_figures_stay(boot):
    result = with_last_answer(cast("Endpoint", boot), THROUGHPUT)
    assert result.verdict is Verdict.FAIL
    assert not still_answers(result)
    assert [check.name for check in result.checks] == ["output-rate@c4", LAST_ANSWER]
    assert result.checks[-1].seen in {"no text came", "exit code 17"}


def test_a_gate_that_nobody_asked_afterwards_proves_no_answer():
    assert not still_answers(THROUGHPUT)
