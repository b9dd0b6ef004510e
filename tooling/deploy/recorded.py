"""What somebody wrote down about a host (messages, events, image digests), judged by the rules of a deploy."""

from __future__ import annotations

import re

from tooling.deploy.faults import Diagnosis, Exit, diagnose, image_advice, restart_advice
from tooling.gates.records import Check, Verdict

#: An end of a container as `docker events` and `docker ps` print it.
_END = re.compile(
    r"\bdie\b[^\n,;]*?exit_?code[=: ](?P<event>\d+)|\b(?:Exited|Restarting) \((?P<state>\d+)\)", re.IGNORECASE
)
_TIMES = re.compile(r"\b(\d+) (?:times|restarts)\b|restart ?count[=: ]+(\d+)", re.IGNORECASE)
_POLICY = re.compile(r"\b(unless-stopped|always|on-failure)\b")
_UNIFIED = re.compile(r"\bGB10\b|\bDGX Spark\b|unified memory|GB200|GH200|Jetson", re.IGNORECASE)
#: A digest, or what stands for one where values were made up, at the end of a line that says whose it is.
_DIGEST = re.compile(r"sha256:[\w<>-]+")
_RUNNING = re.compile(r"\bcontainer\b|\brunning\b|\bin use\b", re.IGNORECASE)
_WANTED = re.compile(r"\bregistry\b|\bremote\b|\bwanted\b|\bexpected\b|\brelease\b|\bpushed\b", re.IGNORECASE)


def judge_host(text: str) -> list[Check]:
    """One check a cause that is recognised; INCONCLUSIVE when none is.

    Args:
        text: Messages of ssh, Docker or the shell, lines of `docker events`, or lines that name image digests.
    """
    found = list(diagnose(text))
    found += [each for each in (_restarts(text), _images(text)) if each is not None]
    if not found:
        seen = (
            "these words are not known, and that proves nothing" if text.strip() else "there is nothing to read"
        )
        return [Check(name="host", verdict=Verdict.INCONCLUSIVE, seen=seen)]
    return [
        Check(
            name=each.id,
            verdict=Verdict.FAIL,
            seen=each.what,
            details=(f"{each.verdict}: {each.line}", f"to do: {each.fix}"),
        )
        for each in found
    ]


def _restarts(text: str) -> Diagnosis | None:
    """Ends of a container that never served."""
    codes = [int(match["event"] or match["state"]) for match in _END.finditer(text)]
    if not codes:
        return None
    told = [int(number) for pair in _TIMES.findall(text) for number in pair if number]
    failed = next((code for code in codes if code), 0)
    exits = [Exit(code=code) for code in codes]
    exits += [Exit(code=failed)] * (max(told, default=0) - len(codes))
    policy = _POLICY.search(text)
    repeated = policy[1] if policy else ("always" if len(exits) > 1 else "no")
    return restart_advice(exits, policy=repeated, unified_memory=_UNIFIED.search(text) is not None)


def _images(text: str) -> Diagnosis | None:
    """The image of the running container against the one that the registry or the release names."""
    running, wanted = "", ""
    for line in text.splitlines():
        digest = _DIGEST.search(line)
        if digest is None:
            continue
        if _RUNNING.search(line):
            running = digest[0]
        elif _WANTED.search(line):
            wanted = digest[0]
    return image_advice(running=running, wanted=wanted) if running and wanted else None
