"""Wait for an engine: until it answers, ends, or is known never to answer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tooling.boot.failure import BootError, Reason, reason_of
from tooling.boot.readiness import Patience, Probe, ProbeState, probe

if TYPE_CHECKING:
    from tooling.boot.container import ContainerWatch
    from tooling.boot.follower import LogFollower

#: Seconds between two requests while nobody listens; the container itself is looked at more often.
_PROBE_S = 0.5
_TIMED_OUT = {
    ProbeState.CLOSED: Reason.NEVER_LISTENED,
    ProbeState.EMPTY: Reason.EMPTY_ANSWER,
    ProbeState.WRONG: Reason.WRONG_ENDPOINT,
}


def wait_ready(
    url: str,
    *,
    model: str,
    patience: Patience,
    watch: ContainerWatch | None,
    follower: LogFollower | None,
) -> Probe:
    """Wait for the first answer.

    Args:
        url: Base of the HTTP interface.
        model: Model that must be served; any if empty.
        patience: Limits.
        watch: The engine's container, if it has one.
        follower: Its log, if there is one.

    Raises:
        BootError: As soon as it is known that no answer will come, or at the end of patience.
    """
    begin = time.monotonic()
    looked = said_ready = 0.0
    empty = 0
    last = Probe(state=ProbeState.CLOSED, seen="not asked yet")
    while True:
        if watch is not None and follower is not None:
            watch.raise_if_ended(follower)
        _raise_if_hopeless(follower)
        now = time.monotonic()
        if now - looked >= _PROBE_S:
            last = probe(url, model=model, answer_s=patience.answer_s)
            looked = time.monotonic()
            empty = empty + 1 if last.state is ProbeState.EMPTY else 0
        if last.state is ProbeState.READY:
            return last
        if last.state is ProbeState.WRONG or empty >= patience.empty_answers:
            raise _failure(_TIMED_OUT[last.state], last.seen, url, follower)
        if not said_ready and follower is not None and follower.report().ready_line:
            said_ready = now
        if said_ready and last.state is ProbeState.CLOSED and now - said_ready > patience.listen_s:
            raise _failure(
                Reason.NEVER_LISTENED,
                f"the engine said {now - said_ready:.0f} s ago that it is ready; nobody listens ({last.seen})",
                url,
                follower,
            )
        if now - begin > patience.ready_s:
            reason = _TIMED_OUT.get(last.state, Reason.NEVER_ANSWERED)
            raise _failure(
                reason,
                f"the engine did not answer within {patience.ready_s:.0f} s ({last.seen})",
                url,
                follower,
            )
        time.sleep(patience.poll_s)


def _raise_if_hopeless(follower: LogFollower | None) -> None:
    finding = follower.hopeless if follower is not None else None
    if finding is None or follower is None:
        return
    report = follower.report()
    raise BootError(
        finding.meaning,
        where=str(follower.path),
        fix=finding.advice,
        details=[finding.text],
        reason=reason_of(report, Reason.HOPELESS),
        report=report,
        log=str(follower.path),
    )


_FIXES = {
    Reason.EMPTY_ANSWER: (
        "HTTP 200 without text is how NaN looks from outside; ask for logprobs (correctness gate)"
    ),
    Reason.NEVER_LISTENED: (
        "compare the engine's host and port arguments with the port of the run contract; "
        "it must listen on 0.0.0.0 inside the container"
    ),
    Reason.WRONG_ENDPOINT: "check the address, the model's name and whether the server wants a key",
    Reason.NEVER_ANSWERED: "read the end of the log; give a large model more time with ready_s",
}


def _failure(reason: Reason, what: str, url: str, follower: LogFollower | None) -> BootError:
    report = follower.report() if follower is not None else None
    return BootError(
        what,
        where=url,
        fix=_FIXES[reason],
        details=follower.last_lines() if follower is not None else [],
        reason=reason,
        report=report,
        log=str(follower.path) if follower is not None else "",
    )
