"""What is asked of every reply, whatever it was for: answered, finite, not empty, language, no stall."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from tooling.gates.correctness.answers import OK, Fault
from tooling.gates.records import Check, Verdict, worst

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.gates.correctness.client import Reply

#: Check -> the faults that it gathers.
GATHERED = {
    "requests-answered": (Fault.UNANSWERED, Fault.REFUSED, Fault.MALFORMED),
    "logprobs-finite": (Fault.NOT_FINITE, Fault.NO_LOGPROBS),
    "answers-present": (Fault.EMPTY, Fault.IN_REASONING, Fault.BUDGET),
    "text-sane": (Fault.DEGENERATE, Fault.END_TOKEN),
}
#: What a check without findings says.
CLEAN = {
    "requests-answered": "all {n} requests were answered",
    "logprobs-finite": "log-probabilities of {n} answers, all finite and at most zero",
    "answers-present": "{n} answers, none of them empty",
    "text-sane": "{n} answers, none of them degenerate",
}
#: `usage` may count the end token or not, and a stop string may hide some.
USAGE_TOLERANCE = 2


def check_overall(replies: Sequence[Reply], stall_s: float) -> list[Check]:
    """Gather the findings of all replies.

    Args:
        replies: Every chat reply of the run.
        stall_s: Largest pause in seconds that is no stall.
    """
    return [
        *(_gathered(name, faults, replies) for name, faults in GATHERED.items()),
        check_usage(replies),
        check_stall(replies, stall_s),
    ]


def _gathered(name: str, faults: Sequence[Fault], replies: Sequence[Reply]) -> Check:
    answered = [reply for reply in replies if reply.answer is not None]
    looked_at = {
        "requests-answered": len(replies),
        "logprobs-finite": sum(bool(reply.answer and reply.answer.logprobs) for reply in replies),
    }.get(name, len(answered))
    found = [(reply, finding) for reply in replies for finding in reply.findings if finding.fault in faults]
    if not found:
        verdict = Verdict.PASS if looked_at else Verdict.INCONCLUSIVE
        seen = CLEAN[name].format(n=looked_at) if looked_at else "there was no answer to look at"
        return Check(name=name, verdict=verdict, seen=seen)
    kinds = sorted({finding.fault.value for _, finding in found})
    count = len({id(reply) for reply, _ in found})
    first = found[0][1]
    details = [f"{reply.tag}: {finding.seen}" for reply, finding in found[:8]]
    details += sorted({f"advice: {finding.advice}" for _, finding in found if finding.advice})
    return Check(
        name=name,
        verdict=worst(finding.verdict for _, finding in found),
        seen=f"{count} of {len(replies)} replies: {', '.join(kinds)}; first: {first.seen}",
        value=count,
        unit="replies",
        threshold=0,
        details=tuple(details),
    )


def check_usage(replies: Sequence[Reply]) -> Check:
    """The server's own token counts agree with the tokens that it lists log-probabilities for."""
    name = "usage"
    counted = [
        (reply.tag, reply.answer.completion_tokens, len(reply.answer.logprobs))
        for reply in replies
        if reply.answer and reply.answer.logprobs and reply.answer.completion_tokens is not None
    ]
    if not counted:
        return Check(
            name=name, verdict=Verdict.INCONCLUSIVE, seen="no answer carried both usage and log-probabilities"
        )
    wrong = [
        f"{tag}: usage says {u}, {n} tokens listed" for tag, u, n in counted if abs(u - n) > USAGE_TOLERANCE
    ]
    verdict = Verdict.FAIL if wrong else Verdict.PASS
    seen = f"token counts of {len(counted) - len(wrong)} of {len(counted)} answers agree with their tokens"
    return Check(name=name, verdict=verdict, seen=seen, details=tuple(wrong[:8]))


def check_stall(replies: Sequence[Reply], stall_s: float) -> Check:
    """No request waited long for its next byte, next to what is usual for its kind.

    The bound is far above what a busy host does to a healthy server; a request whose kind is slow as a whole
    (thousands of tokens of prompt, many at once) is held against the median of its kind.
    """
    name = "no-stall"
    answered = [reply for reply in replies if reply.status == OK]
    if not answered:
        return Check(name=name, verdict=Verdict.INCONCLUSIVE, seen="there was no answer to look at")
    kinds: dict[str, list[Reply]] = {}
    for reply in answered:
        kinds.setdefault(reply.tag.split("@")[0], []).append(reply)
    stalled = [
        (reply, usual)
        for kind in kinds.values()
        for usual in [statistics.median(reply.gap_s for reply in kind)]
        for reply in kind
        if reply.gap_s > max(stall_s, 4 * usual)
    ]
    longest = max(reply.gap_s for reply in answered)
    seen = f"longest pause {longest:.2f} s in {len(answered)} answers"
    if stalled:
        seen += f"; {len(stalled)} of them stalled"
    return Check(
        name=name,
        verdict=Verdict.FAIL if stalled else Verdict.PASS,
        seen=seen,
        value=round(longest, 3),
        unit="s",
        threshold=stall_s,
        details=tuple(
            f"{reply.tag}: {reply.gap_s:.2f} s, usually {usual:.2f} s" for reply, usual in stalled[:8]
        ),
    )
