"""T1 and T2: many requests at once must give the answers that each gave alone, for a minute and for an hour."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle, islice
from typing import TYPE_CHECKING

from tooling.gates.correctness.answers import Fault
from tooling.gates.correctness.run import is_right_reply
from tooling.gates.records import Check, Verdict

if TYPE_CHECKING:
    from tooling.gates.correctness.client import Reply
    from tooling.gates.correctness.profile import Question
    from tooling.gates.correctness.run import Run

#: Answers of so many characters are left to the check of long answers.
SHORT = 200
#: Faults of numbers, as opposed to a changed word.
NUMERIC = {Fault.NOT_FINITE, Fault.DEGENERATE, Fault.EMPTY}


def check_load(run: Run) -> Check | None:
    """The questions of T0 again, many in flight; greedy answers must agree with those given alone."""
    load = run.profile.load
    if load is None:
        return None
    name = f"load-{load.concurrency}"
    known = [
        q for q in run.profile.questions if q.id in run.alone and q.id in run.right and len(q.answer) < SHORT
    ]
    if not known:
        return Check(name=name, verdict=Verdict.INCONCLUSIVE, seen="nothing was answered alone to compare with")
    questions = list(islice(cycle(known), load.requests))
    replies = run.at_once([partial(run.ask, question, "load") for question in questions], load.concurrency)
    changed, numeric = [], []
    for question, reply in zip(questions, replies, strict=True):
        alone = run.alone[question.id]
        same = reply.said == alone.said or (is_right_reply(question, reply) and run.right[question.id])
        if reply.answer is None or not same:
            changed.append(
                f"{question.id}: alone {alone.said[:40]!r}, under load {(reply.said or reply.text)[:60]!r}"
            )
        if run.right[question.id] and any(finding.fault in NUMERIC for finding in reply.findings):
            numeric.append(question.id)
    agreement = 1 - len(changed) / len(questions)
    verdict = Verdict.PASS if agreement >= load.min_agreement and not numeric else Verdict.FAIL
    kept = len(questions) - len(changed)
    seen = f"{kept} of {len(questions)} answers as alone with {load.concurrency} in flight"
    if numeric:
        seen += f"; {len(numeric)} that were right alone are empty, degenerate or not finite"
    return Check(
        name=name,
        verdict=verdict,
        seen=seen,
        value=round(agreement, 4),
        unit="share",
        threshold=load.min_agreement,
        details=tuple(changed[:12]),
    )


def check_soak(run: Run) -> Check | None:
    """The questions of T0 again and again under constant load: right at first is not right for long."""
    soak = run.profile.soak
    if soak is None:
        return None
    questions = [q for q in run.profile.questions if run.right.get(q.id) and q.id in run.alone]
    if not questions:
        return Check(name="soak", verdict=Verdict.INCONCLUSIVE, seen="nothing was right before the soak began")
    started = time.monotonic()
    end = started + soak.seconds
    wrong: list[str] = []
    rounds = 0
    with ThreadPoolExecutor(soak.concurrency) as pool:
        workers = [pool.submit(_keep_busy, run, questions, end) for _ in range(soak.concurrency)]
        while time.monotonic() < end and not run.client.gone:
            rounds += 1
            for question in questions[:: max(1, len(questions) // 24)]:
                reply = run.ask(question, f"soak-{rounds}")
                if not is_right_reply(question, reply):
                    minute = (time.monotonic() - started) / 60
                    wrong.append(f"minute {minute:.0f}: {question.id}: got {(reply.said or reply.text)[:60]!r}")
            run.say(f"soak: round {rounds}, {len(wrong)} wrong so far")
            time.sleep(max(0.0, min(soak.every_s, end - time.monotonic())))
        done = sum(worker.result() for worker in workers)
    verdict = Verdict.FAIL if wrong or run.client.gone else Verdict.PASS
    seen = f"{len(wrong)} wrong in {rounds} rounds over {soak.seconds / 60:.3g} min, {done} requests of load"
    return Check(name="soak", verdict=verdict, seen=seen, details=tuple(wrong[:12]))


def _keep_busy(run: Run, questions: list[Question], end: float) -> int:
    count = 0
    for question in cycle(questions):
        if time.monotonic() >= end or run.client.gone:
            break
        reply: Reply = run.ask(question, "soak-load")
        count += reply.answer is not None
    return count
